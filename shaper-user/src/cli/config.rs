//! The configuration on the command line.

use std::path::PathBuf;

use clap::Args;

use crate::config::{Config, ConfigErrors, load};

#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// Directory of shaper.toml and lanes.d/ [default: /etc/shaper, or the built-in example lanes if that is absent]
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
}

impl ConfigArgs {
    /// Loads it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(&self) -> Result<Config, ConfigErrors> {
        load(self.config.as_deref())
    }
}
