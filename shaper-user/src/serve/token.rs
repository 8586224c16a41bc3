//! The secret that lets HTTP clients change lanes.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use subtle::ConstantTimeEq;

/// Bytes of the shortest token: 96 bits in base 64.
const SHORTEST: usize = 16;

/// Never shown, not even by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why a token file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error(
        "cannot read token_file {}: {source}; it has one line, which `openssl rand -base64 24` makes",
        path.display()
    )]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "token_file {} can be read by every user of this host: `chmod o= {}`",
        .0.display(), .0.display()
    )]
    Exposed(PathBuf),
    #[error(
        "the token in {} has to be one line of {SHORTEST} or more visible ASCII characters: `openssl rand -base64 24` \
         makes one",
        .0.display()
    )]
    Unfit(PathBuf),
}

impl TokenError {
    /// Whether the file may be fine, but is not for the one who asks.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl Token {
    /// Reads the token; white space around it does not count.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Read {
            path: path.to_owned(),
            source,
        };
        let mode = fs::metadata(path).map_err(failed)?.mode();
        if mode & 0o007 != 0 {
            return Err(TokenError::Exposed(path.to_owned()));
        }
        let text = fs::read(path).map_err(failed)?;
        let token = text.trim_ascii();
        if token.len() < SHORTEST || !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::Unfit(path.to_owned()));
        }
        Ok(Self(token.to_owned()))
    }

    /// Whether `sent` is the token. Takes as long for a wrong one as for the right one of its length.
    pub fn is(&self, sent: &[u8]) -> bool {
        self.0.ct_eq(sent).into()
    }
}

#[cfg(test)]
pub(super) mod samples {
    use super::*;

    pub(in crate::serve) const TOKEN: &str = "0123456789abcdef";

    pub(in crate::serve) fn token() -> Token {
        Token(TOKEN.into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn written(text: &str, mode: u32) -> Result<Token, TokenError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        Token::read(file.path())
    }

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let token = written("  0123456789abcdef\n", 0o640).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in [
            &b""[..],
            b"0123456789abcdeg",
            b"0123456789abcde",
            b"0123456789abcdef0",
        ] {
            assert!(!token.is(other));
        }
    }

    /// E7: no log line, however made, shows it.
    #[test]
    fn a_token_is_not_shown() {
        let token = written("0123456789abcdef", 0o600).unwrap();
        assert_eq!(format!("{token:?}"), "Token");
    }

    /// E9: what is wrong is said, with the remedy.
    #[test]
    fn an_unfit_file_is_an_error_with_its_remedy() {
        for (text, mode, remedy) in [
            ("0123456789abcdef", 0o644, "chmod o="),
            ("short", 0o600, "openssl"),
            ("", 0o600, "openssl"),
            ("0123456789 abcdef", 0o600, "openssl"),
        ] {
            let error = written(text, mode).unwrap_err().to_string();
            assert!(error.contains(remedy), "{text:?}: {error}");
        }
        let absent = Token::read(Path::new("/nonexistent/token")).unwrap_err();
        assert!(absent.to_string().contains("/nonexistent/token"));
    }
}
