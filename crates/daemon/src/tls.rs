//! TLS: the certificate of the daemon, and the authorities that clients and webhooks trust.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why TLS cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{file}: {cause}", file = file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        cause: String,
    },
    /// Certificate and key do not match, or their permissions are unsafe.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// No certificate could be generated.
    #[error("cannot make a certificate: {0}")]
    Make(String),
}

fn bad(file: &Path, cause: &impl ToString) -> TlsError {
    TlsError::File { file: file.to_owned(), cause: cause.to_string() }
}

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate chain in PEM.
    pub certificate: PathBuf,
    /// The private key in PEM, readable by its owner only.
    pub key: PathBuf,
}

impl CertificateFiles {
    /// The files of a self-signed certificate in a state folder.
    pub fn own(state: &Path) -> Self {
        Self { certificate: state.join("tls-cert.pem"), key: state.join("tls-key.pem") }
    }

    /// Generates a self-signed certificate for these names, unless it exists.
    pub fn make(&self, names: Vec<String>) -> Result<(), TlsError> {
        if self.certificate.exists() && self.key.exists() {
            return Ok(());
        }
        let made = rcgen::generate_simple_self_signed(names);
        let made = made.map_err(|error| TlsError::Make(error.to_string()))?;
        // Write the key first: a certificate without a key would be generated again at the next start.
        write_new(&self.key, 0o600, &made.signing_key.serialize_pem())?;
        write_new(&self.certificate, 0o644, &made.cert.pem())
    }

    /// The TLS configuration of a server with this certificate.
    pub fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let metadata = std::fs::metadata(&self.key).map_err(|error| bad(&self.key, &error))?;
        if metadata.mode() & 0o077 != 0 {
            return Err(bad(&self.key, &"others can read the key; chmod 600 it"));
        }
        let chain = certificates(&self.certificate)?;
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|error| bad(&self.key, &error))?;
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions()?;
        let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn write_new(file: &Path, mode: u32, text: &str) -> Result<(), TlsError> {
    let failed = |error: io::Error| bad(file, &error);
    let made = OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(file);
    let mut made = made.map_err(failed)?;
    made.write_all(text.as_bytes()).and_then(|()| made.sync_all()).map_err(failed)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| bad(file, &error))?;
    let all: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| bad(file, &error))?;
    if all.is_empty() { Err(bad(file, &"there is no certificate in it")) } else { Ok(all) }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The TLS configuration of a client: it trusts the certificates of a file, or those of the system.
pub fn client(authorities: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| bad(file, &error))?;
            }
        }
        // Certificates of the system that cannot be parsed are skipped.
        None => {
            let system = rustls_native_certs::load_native_certs();
            let _ = roots.add_parsable_certificates(system.certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The name of this machine, under which clients may know it.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_once_and_its_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let files = CertificateFiles::own(dir.path());
        files.make(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let first = std::fs::read(&files.certificate).unwrap();
        files.make(vec!["other".to_owned()]).unwrap();
        assert_eq!(std::fs::read(&files.certificate).unwrap(), first);
        files.server().unwrap();
        client(Some(&files.certificate)).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&files.key, open).unwrap();
        assert!(files.server().unwrap_err().to_string().contains("chmod 600"));
        std::fs::write(&files.certificate, "nothing").unwrap();
        assert!(client(Some(&files.certificate)).is_err());
    }
}
