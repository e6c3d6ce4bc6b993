//! The simulated engine as a server: HTTP/1.1 over the model, on one thread of its own.
//!
//! One tokio current-thread runtime a server: an accept task, a driver task that sleeps until the model's
//! next event and
//! writes the tokens that are due, and a task a connection that reads requests, watches for the client's end, and
//! flushes what a full socket did not take. State lives in [`hub::Hub`] on that thread; no locks.

mod admin;
mod api;
mod clock;
mod conn;
mod http;
mod hub;
mod job;
mod metrics;
mod out;
mod record;
mod render;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc as channel;

pub use api::TOOL_MARKER;
use hub::Hub;

use crate::args::Config;
use crate::fault::{BadFault, Fault};

const BACKLOG: i32 = 4096;

/// Why an engine did not start.
#[derive(Debug)]
pub enum StartError {
    /// The address cannot be had.
    Bind(SocketAddr, io::Error),
    /// No thread or runtime.
    Runtime(io::Error),
    /// No signal handler.
    Signal(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(addr, _) => write!(f, "cannot listen on {addr}: choose another --listen address"),
            Self::Runtime(_) => f.write_str("cannot start the engine's thread"),
            Self::Signal(_) => f.write_str("cannot handle signals"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let (Self::Bind(_, error) | Self::Runtime(error) | Self::Signal(error)) = self;
        Some(error)
    }
}

enum Command {
    SetFault(Fault, mpsc::Sender<()>),
    ClearFaults(mpsc::Sender<()>),
    State(mpsc::Sender<Value>),
    Load(mpsc::Sender<Load>),
    SetDraining(bool, mpsc::Sender<()>),
    Request(String, mpsc::Sender<Option<Value>>),
    Stop,
}

/// How busy an engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences admitted and not yet running.
    pub waiting: u32,
    /// Sequences running.
    pub running: u32,
    /// KV blocks that no running sequence holds.
    pub free_blocks: u32,
    /// KV blocks.
    pub blocks: u32,
}

/// A running engine; dropping it stops it.
#[derive(Debug)]
pub struct Engine {
    local_addr: SocketAddr,
    admin_addr: Option<SocketAddr>,
    commands: channel::UnboundedSender<Command>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts an engine on a thread of its own. When this returns it accepts connections.
    ///
    /// # Errors
    /// The address cannot be had, or no thread.
    pub fn start(config: Config) -> Result<Self, StartError> {
        raise_descriptor_limit();
        let bind_error = |addr| move |error: io::Error| StartError::Bind(addr, error);
        let place = Place::reserve(config.listen).map_err(bind_error(config.listen))?;
        let refusing = {
            let mut faults = crate::fault::FaultSet::default();
            config.faults.iter().cloned().for_each(|fault| faults.set(fault));
            faults.refusing().is_some()
        };
        let first = if refusing { None } else { Some(place.listen().map_err(bind_error(config.listen))?) };
        let admin = match config.admin_listen {
            None => None,
            Some(addr) => {
                let place = Place::reserve(addr).map_err(bind_error(addr))?;
                Some((place.addr, place.listen().map_err(bind_error(addr))?, place))
            }
        };
        let (local_addr, admin_addr) = (place.addr, admin.as_ref().map(|(addr, ..)| *addr));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let (commands, inbox) = channel::unbounded_channel();
        let thread = std::thread::Builder::new()
            .name("sim-engine".to_owned())
            .spawn(move || {
                let local = tokio::task::LocalSet::new();
                local.block_on(&runtime, serve(config, place, first, admin.map(|(_, l, _)| l), inbox));
            })
            .map_err(StartError::Runtime)?;
        Ok(Self { local_addr, admin_addr, commands, thread: Some(thread) })
    }

    /// Where it serves.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The admin address, if it was asked for.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// `http://` and the address.
    pub fn url(&self) -> String {
        format!("http://{}", self.local_addr)
    }

    /// Sets a fault; it is in force when this returns.
    ///
    /// # Errors
    /// The text is no fault.
    pub fn set_fault(&self, text: &str) -> Result<(), BadFault> {
        let fault = Fault::parse(text)?;
        self.ask(|reply| Command::SetFault(fault, reply));
        Ok(())
    }

    /// Clears all faults; the engine listens again when this returns.
    pub fn clear_faults(&self) {
        self.ask(Command::ClearFaults);
    }

    /// What `GET /sim/state` shows.
    pub fn state(&self) -> Value {
        self.ask(Command::State).unwrap_or_default()
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        self.ask(Command::Load).unwrap_or_default()
    }

    /// Takes no new generation requests (they get 503), or takes them again; what runs goes on.
    pub fn set_draining(&self, draining: bool) {
        self.ask(|reply| Command::SetDraining(draining, reply));
    }

    /// What `GET /sim/requests/{id}` shows.
    pub fn request(&self, id: &str) -> Option<Value> {
        self.ask(|reply| Command::Request(id.to_owned(), reply)).flatten()
    }

    /// Stops at once: open connections are dropped.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn ask<T>(&self, command: impl FnOnce(mpsc::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = mpsc::channel();
        self.commands.send(command(reply)).ok()?;
        answer.recv().ok()
    }

    fn stop(&mut self) {
        // A closed channel means the thread has ended.
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(
    config: Config,
    place: Place,
    first: Option<TcpListenerStd>,
    admin: Option<TcpListenerStd>,
    mut inbox: channel::UnboundedReceiver<Command>,
) {
    let hub = Rc::new(Hub::new(config));
    hub.listening.set(first.is_some());
    tokio::task::spawn_local(drive(Rc::clone(&hub)));
    tokio::task::spawn_local(accept(Rc::clone(&hub), place, first));
    if let Some(listener) = admin.and_then(|listener| TcpListener::from_std(listener).ok()) {
        let hub = Rc::clone(&hub);
        tokio::task::spawn_local(async move {
            loop {
                accept_one(&hub, &listener, true).await;
            }
        });
    }
    while let Some(command) = inbox.recv().await {
        // A caller that no longer waits for the answer is fine.
        match command {
            Command::Stop => break,
            Command::SetFault(fault, reply) => {
                hub.set_fault(fault).await;
                let _ = reply.send(());
            }
            Command::ClearFaults(reply) => {
                hub.clear_faults().await;
                let _ = reply.send(());
            }
            Command::State(reply) => {
                let _ = reply.send(hub.state());
            }
            Command::Load(reply) => {
                let _ = reply.send(hub.load());
            }
            Command::SetDraining(draining, reply) => {
                hub.draining.set(draining);
                let _ = reply.send(());
            }
            Command::Request(id, reply) => {
                hub.pump();
                let _ = reply.send(hub.core.borrow().board.records.find(&id, &hub.clock));
            }
        }
    }
}

/// Runs the model in real time.
async fn drive(hub: Rc<Hub>) {
    loop {
        match hub.pump() {
            None => hub.wake.notified().await,
            Some(at) => {
                let until = hub.clock.instant(at);
                // Timed out or woken: either way the model is asked again.
                let _ = tokio::time::timeout_at(until, hub.wake.notified()).await;
            }
        }
        // Sockets are looked at between steps even when the model is never idle.
        tokio::task::yield_now().await;
    }
}

/// Accepts connections, except while the engine refuses them.
async fn accept(hub: Rc<Hub>, place: Place, mut first: Option<TcpListenerStd>) {
    loop {
        let refusing = hub.core.borrow().board.faults.refusing();
        if let Some(time) = refusing {
            // A fault that was set before the first accept: the listener made at the start goes too.
            drop(first.take());
            hub.listening.set(false);
            hub.settled.notify_waiters();
            hub.refused.notify_waiters();
            let changed = hub.faults_changed.notified();
            match time {
                None => changed.await,
                Some(time) => {
                    if tokio::time::timeout(time, changed).await.is_err() {
                        hub.core.borrow_mut().board.faults.stop_refusing();
                    }
                }
            }
            continue;
        }
        let listener = match first.take() {
            Some(listener) => Ok(listener),
            None => place.listen(),
        };
        let Ok(listener) = listener.and_then(TcpListener::from_std) else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        hub.listening.set(true);
        hub.settled.notify_waiters();
        while hub.core.borrow().board.faults.refusing().is_none() {
            tokio::select! {
                () = accept_one(&hub, &listener, false) => {}
                () = hub.faults_changed.notified() => {}
            }
        }
    }
}

async fn accept_one(hub: &Rc<Hub>, listener: &TcpListener, admin: bool) {
    match listener.accept().await {
        Ok((sock, _)) => {
            tokio::task::spawn_local(conn::serve(Rc::clone(hub), sock, admin));
        }
        // Out of descriptors, or a connection that died in the queue: the next may do better.
        Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
    }
}

type TcpListenerStd = std::net::TcpListener;

/// An address that stays ours while nobody listens on it: a bound socket that never listens.
#[derive(Debug)]
struct Place {
    addr: SocketAddr,
    _holder: OwnedFd,
}

impl Place {
    fn reserve(addr: SocketAddr) -> io::Result<Self> {
        if addr.port() != 0 {
            // SO_REUSEPORT below would share the port with another engine silently.
            let probe = socket(addr, false)?;
            rustix::net::bind(&probe, &addr)?;
            rustix::net::listen(&probe, 1)?;
        }
        let holder = socket(addr, true)?;
        rustix::net::bind(&holder, &addr)?;
        let addr = SocketAddr::try_from(rustix::net::getsockname(&holder)?)?;
        Ok(Self { addr, _holder: holder })
    }

    fn listen(&self) -> io::Result<TcpListenerStd> {
        let listener = socket(self.addr, true)?;
        rustix::net::bind(&listener, &self.addr)?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(TcpListenerStd::from(listener))
    }
}

fn socket(addr: SocketAddr, share: bool) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if share {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    Ok(fd)
}

/// Ten thousand streams need ten thousand descriptors.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A limit that cannot be raised is met later, by the connection that finds no descriptor.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
