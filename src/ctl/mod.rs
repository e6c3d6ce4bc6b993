//! `llmgw ctl`: the admin API from the command line.
//!
//! Exit codes: 0 done; 1 the server said no, or could not be reached; 2 wrong usage, or a file that cannot be read.

mod client;
mod edit;
mod show;

use crate::Failure;
use clap::{Args, Subcommand, ValueEnum};
use client::{Client, Reply};
use llmgw_controlplane::admin::dto::{ConfigView, Drained, Explanation, Reloaded, Routes, Status, Workers};
use llmgw_controlplane::config::parse_duration;
use llmgw_dataplane::driver::clock::wall_ns;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Flags of `llmgw ctl`.
#[derive(Args)]
pub struct CtlArgs {
    /// The admin API
    #[arg(long, global = true, env = "LLMGW_ADMIN", value_name = "URL", default_value = client::DEFAULT)]
    admin: String,
    /// Its bearer token
    #[arg(long, global = true, env = "LLMGW_TOKEN", value_name = "T", hide_env_values = true)]
    token: Option<String>,
    /// Form of the output
    #[arg(long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

/// Forms of output.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// What the server answered
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// List engines: self-registered workers and endpoints of the configuration
    Workers {
        /// Only those of this model
        #[arg(long, value_name = "M")]
        model: Option<String>,
        /// Go on and show them again, every 2s or as often as said
        #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s",
              value_parser = interval)]
        watch: Option<Duration>,
    },
    /// Show or change the route table
    Routes {
        #[command(subcommand)]
        command: RoutesCommand,
    },
    /// Give a model no new work, and cut what still runs at the deadline
    Drain {
        /// The model that engines serve
        model: String,
        /// What requests in flight may still take, at most 1h
        #[arg(long, value_name = "D", default_value = "1m", value_parser = deadline)]
        deadline: Duration,
    },
    /// Take a drain back
    Undrain {
        /// The model that engines serve
        model: String,
    },
    /// Say where a request would go, and why; nothing is sent or changed
    RouteExplain {
        /// The model that the request names
        #[arg(long, value_name = "M")]
        model: String,
        /// The begin of its prompt: a user's message
        #[arg(long, value_name = "TEXT")]
        prompt: Option<String>,
        /// The prompt is that of a completion, not of a chat
        #[arg(long, requires = "prompt")]
        completion: bool,
        /// Its request id, which draws the backend
        #[arg(long, value_name = "ID")]
        request_id: Option<String>,
    },
    /// Show the configuration in use, and where its values came from
    Config,
    /// Have the configuration file read again
    Reload,
    /// Show how the gateway is
    Status,
}

#[derive(Subcommand)]
enum RoutesCommand {
    /// Show the table
    Get,
    /// Replace the whole table
    Put {
        /// YAML or JSON: a list of routes, or a section `routes`; `-` is standard input
        file: PathBuf,
        /// Only if the table is the one with this ETag; without, whatever it is
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
    },
    /// Edit the table with $VISUAL or $EDITOR
    Edit {
        /// Do not ask before the change is made
        #[arg(long)]
        yes: bool,
    },
    /// Go back to the routes of the configuration
    Reset,
}

fn interval(text: &str) -> Result<Duration, String> {
    let found = parse_duration(text)?;
    if found < Duration::from_millis(100) { Err("at least 100ms".to_owned()) } else { Ok(found) }
}

fn deadline(text: &str) -> Result<Duration, String> {
    let found = parse_duration(text)?;
    if found > Duration::from_secs(3600) {
        return Err("at most 1h".to_owned());
    }
    if found.subsec_nanos() == 0 { Ok(found) } else { Err("whole seconds only".to_owned()) }
}

/// What a model's name must not bring into a path.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// `llmgw ctl`.
pub fn main(args: &CtlArgs) -> Result<(), Failure> {
    let client = Client::new(&args.admin, args.token.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::run)?;
    runtime.block_on(run(&client, args))
}

async fn run(client: &Client, args: &CtlArgs) -> Result<(), Failure> {
    let json = args.output == Output::Json;
    match &args.command {
        Command::Workers { model, watch } => workers(client, json, model.as_deref(), *watch).await,
        Command::Routes { command } => routes(client, json, command).await,
        Command::Drain { model, deadline } => {
            let body = serde_json::json!({ "deadline_s": deadline.as_secs() }).to_string();
            let path = format!("models/{}:drain", utf8_percent_encode(model, NAME));
            let reply = client.send("POST", &path, &[], Some(body)).await?.ok()?;
            print_reply::<Drained>(&reply, json, |drained| {
                let (model, engines) = (&drained.model, show::count(drained.workers, "engine"));
                format!("{model} takes no new work; {engines} may finish until the deadline\n")
            })
        }
        Command::Undrain { model } => {
            let path = format!("models/{}:undrain", utf8_percent_encode(model, NAME));
            let reply = client.send("POST", &path, &[], None).await?.ok()?;
            print_reply::<Drained>(&reply, json, |drained| {
                format!("{} takes work again on {}\n", drained.model, show::count(drained.workers, "engine"))
            })
        }
        Command::RouteExplain { model, prompt, completion, request_id } => {
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.append_pair("model", model);
            // The server looks at the prompt's begin only, and a target has its bound.
            let prompt = prompt.as_deref().map(begin);
            prompt.map(|prompt| query.append_pair("prompt", prompt));
            completion.then(|| query.append_pair("prompt_kind", "completion"));
            request_id.as_ref().map(|id| query.append_pair("request_id", id));
            let reply = client.get(&format!("route-explain?{}", query.finish())).await?.ok()?;
            print_reply::<Explanation>(&reply, json, show::explain)
        }
        Command::Config => {
            let reply = client.get("config").await?.ok()?;
            print_reply::<ConfigView>(&reply, json, show::config)
        }
        Command::Reload => {
            let reply = client.send("POST", "reload", &[], None).await?.ok()?;
            print_reply::<Reloaded>(&reply, json, |reloaded| {
                format!("configuration reloaded, version {}\n", reloaded.version)
            })
        }
        Command::Status => {
            let reply = client.get("status").await?.ok()?;
            print_reply::<Status>(&reply, json, show::status)
        }
    }
}

/// The begin of a prompt: more than any decision looks at.
fn begin(prompt: &str) -> &str {
    let end = prompt.char_indices().map(|(at, _)| at).find(|at| *at >= 4096);
    &prompt[..end.unwrap_or(prompt.len())]
}

async fn workers(
    client: &Client,
    json: bool,
    model: Option<&str>,
    watch: Option<Duration>,
) -> Result<(), Failure> {
    let mut seen = false;
    loop {
        match client.get("workers").await.and_then(Reply::ok) {
            Ok(reply) if json && model.is_none() => print(&line(&reply))?,
            Ok(reply) => {
                let mut found: Workers = reply.read()?;
                found.data.retain(|worker| model.is_none_or(|model| worker.model == model));
                if json {
                    print(&format!("{}\n", serde_json::to_string(&found).map_err(Failure::run)?))?;
                } else {
                    let clear = watch.is_some() && io::stdout().is_terminal();
                    let table = show::workers(&found, wall_ns() / 1_000_000);
                    print(&if clear { format!("\x1b[2J\x1b[H{table}") } else { table })?;
                }
            }
            // A gateway that restarts under a watch comes back.
            Err(failure) if seen && watch.is_some() && failure.code == 1 => warn(&failure.message),
            Err(failure) => return Err(failure),
        }
        seen = true;
        let Some(interval) = watch else { return Ok(()) };
        tokio::time::sleep(interval).await;
    }
}

async fn routes(client: &Client, json: bool, command: &RoutesCommand) -> Result<(), Failure> {
    match command {
        RoutesCommand::Get => {
            let reply = client.get("routes").await?.ok()?;
            print_reply::<Routes>(&reply, json, show::routes)
        }
        RoutesCommand::Put { file, if_match } => {
            let text = if file.as_os_str() == "-" {
                let mut text = String::new();
                io::stdin().read_to_string(&mut text).map(|_| text)
            } else {
                std::fs::read_to_string(file)
            };
            let name = file.display();
            let text = text.map_err(|error| Failure::usage(format!("{name} cannot be read: {error}")))?;
            let table = edit::parse(&text).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
            let tag = match if_match {
                Some(tag) => tag.clone(),
                None => client.get("routes").await?.ok()?.etag()?,
            };
            let reply = put(client, &table, &tag).await?.ok()?;
            print_reply::<Routes>(&reply, json, changed)
        }
        RoutesCommand::Edit { yes } => edit::run(client, json, *yes).await,
        RoutesCommand::Reset => {
            let tag = client.get("routes").await?.ok()?.etag()?;
            let reply = client.send("DELETE", "routes", &[("if-match", &tag)], None).await?.ok()?;
            print_reply::<Routes>(&reply, json, changed)
        }
    }
}

async fn put(client: &Client, table: &serde_json::Value, tag: &str) -> Result<Reply, Failure> {
    client.send("PUT", "routes", &[("if-match", tag)], Some(table.to_string())).await
}

fn changed(routes: &Routes) -> String {
    format!("{}, epoch {}\n", show::count(routes.routes.len(), "route"), routes.route_epoch)
}

/// Prints an answer in the form that was asked for.
fn print_reply<T: DeserializeOwned>(
    reply: &Reply,
    json: bool,
    show: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    if json { print(&line(reply)) } else { print(&show(&reply.read()?)) }
}

/// An answer as a line of its own.
fn line(reply: &Reply) -> String {
    format!("{}\n", String::from_utf8_lossy(&reply.body).trim_end())
}

/// Prints; a reader that has left is no failure of ours, but ends the command.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            Err(Failure { code: 0, message: String::new() })
        }
        result => result.map_err(Failure::run),
    }
}

#[allow(clippy::print_stderr)] // the command line's own voice
fn warn(message: &str) {
    eprintln!("llmgw: {message}");
}
