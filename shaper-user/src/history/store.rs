//! The file that the hours are kept in.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use redb::{
    Builder, Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition,
};

#[cfg(any(test, feature = "fuzz"))]
use super::tally::{Tally, WallClock};
use super::{
    hour::{Hour, LaneHour},
    tally::{Batch, News, Windows},
};

/// An hour and a lane, as JSON: what is added later has a default, what is not known is left out.
const HOURS: TableDefinition<'_, (u32, &str), &[u8]> = TableDefinition::new("hours");
/// A single value.
const WINDOWS: TableDefinition<'_, (), &[u8]> = TableDefinition::new("windows");

/// Memory for pages. What is written are the pages of the present hour; old ones are read once a query.
const CACHE_BYTES: usize = 1024 * 1024;

/// What the store did not do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("{} is in use by another controller: give each instance a --state of its own", .0.display())]
    InUse(PathBuf),
    /// What is in the file is not what was written.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{}: {source}", path.display())]
    Failed { path: PathBuf, source: redb::Error },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    database: Database,
}

impl Store {
    /// Opens the store at `path`, which is made, with its directory, if it is not there. After a crash this reads all of
    /// it once, and it is as it was at the last write that was done.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(|source| StoreError::Io {
                path: directory.to_owned(),
                source,
            })?;
        }
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true)
            .create(path)
            .map_err(|error| explain(path, error))?;
        Ok(Self {
            path: path.to_owned(),
            database,
        })
    }

    /// Adds what is new and forgets all hours before `oldest`. All of it or, when it fails, nothing.
    ///
    /// # Errors
    /// [`StoreError::Failed`] and [`StoreError::Damaged`]; afterwards the store must be opened again.
    pub fn write(&self, batch: &Batch, oldest: Hour) -> Result<(), StoreError> {
        self.try_write(batch, oldest)
            .map_err(|error| self.failed(error))
    }

    fn try_write(&self, batch: &Batch, oldest: Hour) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut hours = transaction.open_table(HOURS)?;
            for ((hour, lane), new) in &batch.news {
                let key = (hour.0, lane.as_str());
                let mut kept = match hours.get(key)? {
                    Some(kept) => decode::<LaneHour>(kept.value()),
                    None => LaneHour::default(),
                };
                kept.merge(new);
                hours.insert(key, encode(&kept)?.as_slice())?;
            }
            hours.retain_in(..(oldest.0, ""), |_, _| false)?;
            if let Some(windows) = &batch.windows {
                let mut kept = transaction.open_table(WINDOWS)?;
                kept.insert((), encode(windows)?.as_slice())?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// The windows as last written.
    ///
    /// # Errors
    /// [`StoreError::Failed`] and [`StoreError::Damaged`].
    pub fn windows(&self) -> Result<Windows, StoreError> {
        let read = || -> Result<Windows, redb::Error> {
            let transaction = self.database.begin_read()?;
            let table = match transaction.open_table(WINDOWS) {
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Windows::new()),
                table => table?,
            };
            let kept = table.get(())?;
            Ok(kept.map_or_else(Windows::new, |kept| decode(kept.value())))
        };
        read().map_err(|error| self.failed(error))
    }

    /// All hours from `first` on.
    ///
    /// # Errors
    /// [`StoreError::Failed`] and [`StoreError::Damaged`].
    pub fn since(&self, first: Hour) -> Result<News, StoreError> {
        hours_since(&self.database, first).map_err(|error| failed(&self.path, error))
    }

    /// All hours from `first` on, of a store that nobody has open. Nothing is made or changed, unless the store must be
    /// repaired after a crash.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub fn read(path: &Path, first: Hour) -> Result<News, StoreError> {
        match Builder::new().open_read_only(path) {
            Err(DatabaseError::RepairAborted) => Self::open(path)?.since(first),
            Err(error) => Err(explain(path, error)),
            Ok(database) => hours_since(&database, first).map_err(|error| failed(path, error)),
        }
    }

    fn failed(&self, error: redb::Error) -> StoreError {
        failed(&self.path, error)
    }
}

fn hours_since(database: &impl ReadableDatabase, first: Hour) -> Result<News, redb::Error> {
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(HOURS) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(News::new()),
        table => table?,
    };
    let mut found = News::new();
    for entry in table.range((first.0, "")..)? {
        let (key, value) = entry?;
        let (hour, lane) = key.value();
        found.insert((Hour(hour), lane.to_owned()), decode(value.value()));
    }
    Ok(found)
}

fn failed(path: &Path, error: redb::Error) -> StoreError {
    let path = path.to_owned();
    match error {
        redb::Error::Corrupted(reason) => StoreError::Damaged { path, reason },
        source => StoreError::Failed { path, source },
    }
}

fn explain(path: &Path, error: DatabaseError) -> StoreError {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            StoreError::InUse(path)
        }
        DatabaseError::Storage(StorageError::Corrupted(reason)) => {
            StoreError::Damaged { path, reason }
        }
        // Not a database at all.
        DatabaseError::Storage(StorageError::Io(source))
            if source.kind() == io::ErrorKind::InvalidData =>
        {
            StoreError::Damaged {
                path,
                reason: source.to_string(),
            }
        }
        DatabaseError::UpgradeRequired(version) => StoreError::Damaged {
            path,
            reason: format!("its format {version} is of another age"),
        },
        DatabaseError::Storage(StorageError::Io(source)) => StoreError::Io { path, source },
        source => StoreError::Failed {
            path,
            source: source.into(),
        },
    }
}

fn encode<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, redb::Error> {
    serde_json::to_vec(value).map_err(|error| redb::Error::Corrupted(error.to_string()))
}

/// What another version has written in a way that this one cannot read is as good as not there.
fn decode<T: serde::de::DeserializeOwned + Default>(bytes: &[u8]) -> T {
    serde_json::from_slice(bytes).unwrap_or_default()
}

/// Shows what is made of any value that the file may hold, see [`crate::fuzz`].
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn survives(bytes: &[u8]) {
    let mut hour: LaneHour = decode(bytes);
    hour.merge(&hour.clone());
    let total = hour.total();
    assert!(total.wait_mean() <= total.wait_total);
    total.wait_p90();
    total.gateway_errors.total();
    let clock = WallClock::new(crate::policy::Ns(0), jiff::Timestamp::UNIX_EPOCH);
    Tally::new(clock).resume(&decode(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use shaper_common::Class;

    fn path(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join("made/history.redb")
    }

    fn starts(hour: u32, count: u64) -> Batch {
        let mut lane = LaneHour::default();
        lane.classes.get_mut(Class::Bulk).starts = count;
        Batch {
            news: News::from([((Hour(hour), "reasoning".to_owned()), lane)]),
            windows: None,
        }
    }

    fn starts_in(store: &Store, hour: u32) -> u64 {
        let found = store.since(Hour(0)).unwrap();
        found
            .get(&(Hour(hour), "reasoning".to_owned()))
            .map_or(0, |lane| lane.total().starts)
    }

    /// C11: what is written adds up, also after it was opened again.
    #[test]
    fn an_hour_goes_on_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&path(&directory)).unwrap();
        store.write(&starts(7, 3), Hour(0)).unwrap();
        drop(store);
        let store = Store::open(&path(&directory)).unwrap();
        store.write(&starts(7, 4), Hour(0)).unwrap();
        store.write(&starts(8, 1), Hour(0)).unwrap();
        assert_eq!((starts_in(&store, 7), starts_in(&store, 8)), (7, 1));
        assert_eq!(store.since(Hour(8)).unwrap().len(), 1);
    }

    #[test]
    fn hours_that_are_too_old_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&path(&directory)).unwrap();
        for hour in 0..10 {
            store.write(&starts(hour, 1), Hour(0)).unwrap();
        }
        store.write(&Batch::default(), Hour(6)).unwrap();
        let hours: Vec<u32> = store
            .since(Hour(0))
            .unwrap()
            .into_keys()
            .map(|(hour, _)| hour.0)
            .collect();
        assert_eq!(hours, [6, 7, 8, 9]);
    }

    #[test]
    fn the_windows_are_those_written_last() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&path(&directory)).unwrap();
        assert_eq!(store.windows().unwrap(), Windows::new());
        let windows = Windows::from([("reasoning".to_owned(), Default::default())]);
        let batch = Batch {
            windows: Some(windows.clone()),
            ..Batch::default()
        };
        store.write(&batch, Hour(0)).unwrap();
        store.write(&starts(1, 1), Hour(0)).unwrap();
        assert_eq!(store.windows().unwrap(), windows);
    }

    #[test]
    fn a_second_one_is_told_who_it_is_in_the_way_of() {
        let directory = tempfile::tempdir().unwrap();
        let _first = Store::open(&path(&directory)).unwrap();
        let error = Store::open(&path(&directory)).unwrap_err();
        assert!(matches!(error, StoreError::InUse(_)), "{error}");
        assert!(error.to_string().contains("--state"), "{error}");
    }

    #[test]
    fn what_is_no_store_or_is_cut_short_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(&directory);
        let store = Store::open(&path).unwrap();
        for hour in 0..2000 {
            store.write(&starts(hour, 1), Hour(0)).unwrap();
        }
        drop(store);
        let whole = fs::read(&path).unwrap();
        for text in [
            b"not a store at all".to_vec(),
            whole[..whole.len() / 2].to_vec(),
        ] {
            fs::write(&path, text).unwrap();
            let error = Store::open(&path).unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        }
    }
}
