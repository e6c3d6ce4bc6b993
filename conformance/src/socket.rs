//! A gateway at a real address, with a scripted engine of this process behind it.

use crate::case::{Case, End, Side, probe};
use crate::wire::{Seen, ordinary_answer, probe_answered, read_answers, read_request, waits_for_continue};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two pieces of a write: long enough for the gateway to read the first, on a machine that is not busy.
const APART: Duration = Duration::from_micros(50);

/// What the engine's connections share.
#[derive(Default)]
struct State {
    script: Option<(Vec<Vec<u8>>, End)>,
    seen: Seen,
}

/// The engine; its threads end with the process.
pub struct ScriptedEngine {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl ScriptedEngine {
    /// Starts one. `gets_count`: GET requests are part of what is tested, not the gateway's own probes.
    pub fn start(gets_count: bool) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &shared, gets_count));
            }
        });
        Ok(ScriptedEngine { address, state })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs a case against the gateway at `gateway`, its bytes cut at `at` if given; silence for `patience` is a
    /// verdict of its own.
    pub fn run(
        &self,
        case: &Case,
        at: Option<usize>,
        gateway: SocketAddr,
        patience: Duration,
    ) -> std::io::Result<Seen> {
        let (mut writes, mut end) = (pieces(&case.writes, at), case.end);
        {
            let mut state = self.state();
            *state = State::default();
            if case.side == Side::Response {
                state.script = Some((writes.concat(), case.end));
                writes = vec![vec![case.request.clone()], vec![probe()]];
                end = End::Keep;
            } else if case.probe {
                let last = writes.last_mut().and_then(|write| write.last_mut());
                last.expect("a case writes something").extend(probe());
            }
        }
        let head = case.side == Side::Request && case.bytes().starts_with(b"HEAD ");
        let (output, closed) = talk(gateway, &writes, end, head, patience)?;
        let mut seen = std::mem::take(&mut self.state().seen);
        seen.closed = closed;
        seen.answers = read_answers(&output, head, closed);
        Ok(seen)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The writes, that at `at` of their concatenation in two pieces.
fn pieces(writes: &[Vec<u8>], at: Option<usize>) -> Vec<Vec<Vec<u8>>> {
    let mut begin = 0;
    let cut = |write: &Vec<u8>| {
        let local = at.and_then(|at| at.checked_sub(begin)).filter(|&local| local > 0 && local < write.len());
        begin += write.len();
        match local {
            Some(local) => vec![write[..local].to_vec(), write[local..].to_vec()],
            None => vec![write.clone()],
        }
    };
    writes.iter().map(cut).collect()
}

/// Writes pieces apart from each other, as far as a socket lets one.
fn write_apart(stream: &mut TcpStream, pieces: &[Vec<u8>]) -> std::io::Result<()> {
    for (n, piece) in pieces.iter().enumerate() {
        if n > 0 {
            std::thread::park_timeout(APART);
        }
        stream.write_all(piece)?;
    }
    Ok(())
}

/// The client: all that came, and whether the connection ended.
fn talk(
    gateway: SocketAddr,
    writes: &[Vec<Vec<u8>>],
    end: End,
    head: bool,
    patience: Duration,
) -> std::io::Result<(Vec<u8>, bool)> {
    let mut stream = TcpStream::connect(gateway)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    let (mut output, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    for (i, write) in writes.iter().enumerate() {
        if i > 0 && output.is_empty() {
            // A later write waits for an answer to the earlier one.
            match stream.read(&mut buffer) {
                Ok(n) if n > 0 => output.extend_from_slice(&buffer[..n]),
                _ => break,
            }
        }
        if write_apart(&mut stream, write).is_err() {
            break; // it hung up; what it said is still to be read
        }
    }
    if end == End::Close {
        let _ = stream.shutdown(Shutdown::Write);
    }
    loop {
        if probe_answered(&read_answers(&output, head, false)) {
            return Ok((output, false));
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Ok((output, true)),
            Ok(n) => output.extend_from_slice(&buffer[..n]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::ConnectionReset) => {
                return Ok((output, true));
            }
            Err(_) => return Ok((output, false)),
        }
    }
}

/// One connection of the engine.
fn serve(mut stream: TcpStream, shared: &Mutex<State>, gets_count: bool) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let (mut input, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    let mut continued = false;
    loop {
        let message = match read_request(&input) {
            Ok(Some((message, used))) => {
                input.drain(..used);
                continued = false;
                message
            }
            Ok(None) if !continued && waits_for_continue(&input) => {
                continued = true;
                let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
                continue;
            }
            Ok(None) => match stream.read(&mut buffer) {
                Ok(n) if n > 0 => {
                    input.extend_from_slice(&buffer[..n]);
                    continue;
                }
                _ => return,
            },
            Err(error) => {
                lock(shared).seen.engine_error = Some(error);
                // Refused, as any server would.
                let _ = stream
                    .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                return;
            }
        };
        if message.method == "GET" && !gets_count {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            continue;
        }
        let (answer, end) = {
            let mut state = lock(shared);
            let answer = state.script.take().unwrap_or_else(|| (vec![ordinary_answer(&message)], End::Keep));
            state.seen.engine.push(message);
            answer
        };
        if write_apart(&mut stream, &answer).is_err() || end == End::Close {
            return;
        }
    }
}
