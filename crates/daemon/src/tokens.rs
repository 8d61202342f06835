//! Tokens for clients on TCP. A token stands for a user, has scopes and expires; only its hash is stored.

use crate::command::{Caller, Rights};
use crate::store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use subtle::ConstantTimeEq;
use utoipa::ToSchema;

/// The most tokens of one user.
pub const TOKENS_PER_USER_MAX: usize = 100;
/// The longest name of a token.
pub const NAME_MAX: usize = 64;
/// The default life of a token: 90 days.
pub const LIFE_DEFAULT_S: u64 = 90 * 86_400;
/// The longest life of a token: ten years.
pub const LIFE_MAX_S: u64 = 3650 * 86_400;
/// Prefix of every token, so that secret scanners recognise it.
const PREFIX: &str = "tandem_";

/// A scope of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// See what the user may see.
    Read,
    /// Submit jobs, and change those of the user.
    Submit,
    /// Act as an operator, if the user is one.
    Operate,
}

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its id.
    pub id: u64,
    /// The user id that it stands for.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// The user's name.
    pub user: String,
    /// Its name.
    pub name: String,
    /// Its scopes.
    pub scopes: Vec<Scope>,
    /// Creation, in microseconds since the Unix epoch.
    pub created_us: u64,
    /// Expiry, likewise.
    pub expires_us: u64,
}

impl Token {
    /// Whether it has this scope. Every token may read.
    pub fn allows(&self, scope: Scope) -> bool {
        scope == Scope::Read || self.scopes.contains(&scope)
    }

    /// The caller that it identifies.
    pub fn caller(&self) -> Caller {
        let rights = Rights {
            submit: self.allows(Scope::Submit),
            operate: self.allows(Scope::Operate),
            is_token: true,
            is_listed: false,
        };
        Caller { uid: self.uid, gid: self.gid, user: self.user.clone(), rights }
    }
}

/// SHA-256 of a token. A token has 256 random bits, so a slow hash would add nothing.
pub type TokenHash = [u8; 32];

/// All tokens, kept in memory and in the store.
#[derive(Clone, Default)]
pub struct Tokens(Arc<RwLock<Known>>);

#[derive(Default)]
struct Known {
    tokens: BTreeMap<u64, (TokenHash, Token)>,
    /// The highest id given.
    last_id: u64,
}

impl Tokens {
    /// The tokens of a store.
    pub fn load(store: &Store) -> Result<Self, StoreError> {
        let all = store.tokens()?.into_iter().map(|(hash, token)| (token.id, (hash, token)));
        let tokens: BTreeMap<_, _> = all.collect();
        let last_id = tokens.last_key_value().map_or(0, |(&id, _)| id);
        Ok(Self(Arc::new(RwLock::new(Known { tokens, last_id }))))
    }

    /// The unexpired token with this secret. All are compared, each in constant time.
    pub fn authenticate(&self, secret: &str, unix_us: u64) -> Option<Token> {
        let hash = hash(secret);
        let known = self.read();
        let mut found = None;
        for (other, token) in known.tokens.values() {
            if bool::from(hash.ct_eq(other)) {
                found = Some(token);
            }
        }
        found.filter(|token| unix_us < token.expires_us).cloned()
    }

    /// An id for a new token.
    pub fn reserve_id(&self) -> u64 {
        let mut known = self.write();
        known.last_id += 1;
        known.last_id
    }

    /// All tokens by number.
    pub fn list(&self) -> Vec<Token> {
        self.read().tokens.values().map(|(_, token)| token.clone()).collect()
    }

    /// A token by its number.
    pub fn get(&self, id: u64) -> Option<Token> {
        self.read().tokens.get(&id).map(|(_, token)| token.clone())
    }

    /// Adds a token that the store has.
    pub fn add(&self, hash: TokenHash, token: Token) {
        self.write().tokens.insert(token.id, (hash, token));
    }

    /// Removes a token that the store no longer has.
    pub fn remove(&self, id: u64) {
        self.write().tokens.remove(&id);
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hash by which a token is known.
pub fn hash(secret: &str) -> TokenHash {
    Sha256::digest(secret.as_bytes()).into()
}

/// A new secret.
pub fn new_secret() -> std::io::Result<String> {
    let mut random = [0_u8; 32];
    std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random))?;
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{PREFIX}{hex}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u64, expires_us: u64, scopes: &[Scope]) -> Token {
        let (user, name) = ("ann".to_owned(), String::new());
        let scopes = scopes.to_vec();
        Token { id, uid: 1000, gid: 100, user, name, scopes, created_us: 0, expires_us }
    }

    #[test]
    fn a_token_is_its_user_until_it_ends() {
        let tokens = Tokens::default();
        let (secret, other) = (new_secret().unwrap(), new_secret().unwrap());
        assert_ne!(secret, other);
        assert_eq!(secret.len(), PREFIX.len() + 64);
        tokens.add(hash(&secret), token(7, 100, &[Scope::Submit]));
        tokens.add(hash(&other), token(8, 50, &[]));
        let found = tokens.authenticate(&secret, 99).unwrap();
        assert_eq!((found.id, found.uid), (7, 1000));
        assert!(found.caller().rights.submit && !found.caller().rights.operate);
        assert_eq!(tokens.authenticate(&secret, 100), None, "it has ended");
        assert_eq!(tokens.authenticate(&secret[1..], 0), None);
        assert_eq!(tokens.authenticate("", 0), None);
        tokens.remove(7);
        assert_eq!(tokens.authenticate(&secret, 99), None, "it was revoked");
        assert_ne!(tokens.reserve_id(), tokens.reserve_id());
    }
}
