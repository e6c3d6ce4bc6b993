//! The protocols between nodes: code generated from `proto/`, both the clients' and the servers' side.

/// How engines announce themselves to the gateway.
pub mod control {
    /// `tl.control.v1`.
    #[allow(missing_docs, clippy::all, clippy::pedantic)] // generated
    pub mod v1 {
        tonic::include_proto!("tl.control.v1");
    }
}

/// Longest message either way, in bytes.
pub const MESSAGE_MAX: usize = 4 << 20;
