//! A class on the command line.

use clap::ValueEnum;
use shaper_common::Class;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ClassArg {
    Interactive,
    Default,
    Bulk,
}

impl From<ClassArg> for Class {
    fn from(arg: ClassArg) -> Self {
        match arg {
            ClassArg::Interactive => Self::Interactive,
            ClassArg::Default => Self::Default,
            ClassArg::Bulk => Self::Bulk,
        }
    }
}
