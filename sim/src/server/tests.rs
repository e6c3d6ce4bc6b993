//! The server over real sockets: surface, faults, and what a client's end does.

mod client;
mod faults;
mod life;
mod surface;
