//! A route table that was set through the API, on disk: `routes.json` in the store's directory.
//!
//! **Invariants**
//!
//! * A saved table is on disk whole when [`RouteFile::save`] returns, or the one before it is: it is written beside,
//!   synced, renamed, and the directory synced.
//! * A file that cannot be understood is never taken for an empty table: the process does not start over it.

use super::dto::Route;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file's name.
const NAME: &str = "routes.json";
/// Layout of the file.
const VERSION: u32 = 1;

/// What is in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    version: u32,
    /// Epoch of the table.
    pub route_epoch: u64,
    /// The table.
    pub routes: Vec<Route>,
}

impl Stored {
    /// A table and its epoch.
    pub fn new(routes: Vec<Route>, route_epoch: u64) -> Stored {
        Stored { version: VERSION, route_epoch, routes }
    }
}

/// Why the file cannot be used.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum StoredError {
    /// It cannot be read.
    Read { path: PathBuf, error: io::Error },
    /// It does not hold a route table.
    Corrupt { path: PathBuf, reason: String },
    /// It cannot be written.
    Write { path: PathBuf, error: io::Error },
}

impl fmt::Display for StoredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoredError::Read { path, error } => {
                write!(f, "the route table in {} cannot be read: {error}", path.display())
            }
            StoredError::Corrupt { path, reason } => write!(
                f,
                "{} does not hold a route table: {reason}. It was set through the admin API and stands over the \
                 configuration's routes; mend it, or move it away to go back to those",
                path.display()
            ),
            StoredError::Write { path, error } => {
                write!(f, "the route table cannot be written to {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for StoredError {}

/// Where the table is kept.
#[derive(Debug, Clone)]
pub struct RouteFile {
    path: PathBuf,
}

impl RouteFile {
    /// In the store's directory, which need not exist yet.
    pub fn within(store: &Path) -> RouteFile {
        RouteFile { path: store.join(NAME) }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The table; none if none was set.
    pub fn load(&self) -> Result<Option<Stored>, StoredError> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoredError::Read { path: self.path.clone(), error }),
        };
        let stored: Stored =
            serde_json::from_slice(&bytes).map_err(|error| self.corrupt(error.to_string()))?;
        if stored.version != VERSION {
            let reason = format!("its layout is {}, this version reads {VERSION}", stored.version);
            return Err(self.corrupt(reason));
        }
        if let Err((param, message)) = super::spec::validate(&stored.routes) {
            return Err(self.corrupt(format!("{param}: {message}")));
        }
        Ok(Some(stored))
    }

    fn corrupt(&self, reason: String) -> StoredError {
        StoredError::Corrupt { path: self.path.clone(), reason }
    }

    /// Keeps a table.
    pub fn save(&self, stored: &Stored) -> Result<(), StoredError> {
        self.write(stored).map_err(|error| StoredError::Write { path: self.path.clone(), error })
    }

    fn write(&self, stored: &Stored) -> io::Result<()> {
        let directory = self.directory();
        fs::create_dir_all(directory)?;
        let beside = self.path.with_extension("json.new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        let mut text = serde_json::to_vec_pretty(stored)?;
        text.push(b'\n');
        file.write_all(&text)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, &self.path)?;
        File::open(directory)?.sync_all()
    }

    /// Forgets the table; `false` if there was none.
    pub fn remove(&self) -> Result<bool, StoredError> {
        let removed = match fs::remove_file(&self.path) {
            Ok(()) => File::open(self.directory()).and_then(|directory| directory.sync_all()).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        removed.map_err(|error| StoredError::Write { path: self.path.clone(), error })
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }
}
