//! The bytes of a connection, in the clear or through TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A connection's byte stream and the socket under it.
pub(super) trait Wire: Read + Write {
    fn socket(&self) -> impl AsFd;

    /// Says that nothing more will come, where the protocol has a word for it.
    fn end(&mut self) -> io::Result<()>;
}

impl Wire for &TcpStream {
    fn socket(&self) -> impl AsFd {
        *self
    }

    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Wire for StreamOwned<ServerConnection, &TcpStream> {
    fn socket(&self) -> impl AsFd {
        self.sock
    }

    fn end(&mut self) -> io::Result<()> {
        self.conn.send_close_notify();
        self.flush()
    }
}

/// The one TLS version a gateway speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TlsVersion {
    V1_2,
    V1_3,
}

/// A gateway's TLS: a certificate of its own making for `localhost` and the addresses it listens on.
#[derive(Debug)]
pub(super) struct Tls {
    pub(super) config: Arc<ServerConfig>,
    /// The certificate in PEM form, for a client to trust.
    pub(super) certificate: String,
}

impl Tls {
    pub(super) fn for_names(names: Vec<String>, version: TlsVersion) -> Result<Self> {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(names).context("cannot make a certificate")?;
        let versions = match version {
            TlsVersion::V1_2 => [&TLS12],
            TlsVersion::V1_3 => [&TLS13],
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .context("the provider lacks the TLS version")?
            .with_no_client_auth()
            .with_single_cert(
                vec![cert.der().clone()],
                PrivateKeyDer::Pkcs8(signing_key.serialize_der().into()),
            )
            .context("the certificate does not fit its key")?;
        // A client that offers h2 is told to speak HTTP/1.1, the only protocol this gateway knows.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            config: Arc::new(config),
            certificate: cert.pem(),
        })
    }

    pub(super) fn accept<'socket>(
        &self,
        socket: &'socket TcpStream,
    ) -> Result<StreamOwned<ServerConnection, &'socket TcpStream>> {
        let connection = ServerConnection::new(Arc::clone(&self.config))
            .context("cannot start a TLS connection")?;
        Ok(StreamOwned::new(connection, socket))
    }
}
