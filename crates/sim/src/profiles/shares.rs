//! Communication shares by model: `model,share`, where `*` means all other models.

use crate::interference::TableError;
use crate::links::Network;
use crate::sheet::{Sheet, read_bytes};

/// The name for all other models.
const ANY: &str = "*";

/// Reads a file. The last of several rows of a model counts.
pub fn read_shares(file: &str) -> Result<Network, TableError> {
    parse(&Sheet::parse(&read_bytes(file)?, file)?)
}

pub(super) fn parse(sheet: &Sheet<'_>) -> Result<Network, TableError> {
    let (model, share) = (sheet.column("model")?, sheet.column("share")?);
    let mut network = Network::default();
    for row in sheet.rows() {
        let value = row.number(share)?;
        if value >= 1.0 {
            return Err(row.bad(share, "not below 1"));
        }
        match row.text(model) {
            ANY => network.default_share = value,
            name => {
                network.shares.insert(name.to_owned(), value);
            }
        }
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_by_model_and_for_all_others() {
        let read = |text: &str| Sheet::parse(text.as_bytes(), "n.csv").and_then(|s| parse(&s));
        let network = read("model,share\nBERT,0.6\n*,0.1\n").unwrap();
        assert_eq!((network.shares["BERT"], network.default_share), (0.6, 0.1));
        let error = |text: &str| read(text).unwrap_err().to_string();
        assert_eq!(error("model,share\nBERT,1\n"), "n.csv:2: share: not below 1: '1'");
        assert_eq!(error("model\nBERT\n"), "n.csv:1: share: missing column");
    }
}
