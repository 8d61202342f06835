//! Changes recordings a little: bytes, numbers, words, parts of other recordings, and nodes of JSON documents.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

/// The longest input.
const LENGTH_MAX: usize = 64 << 10;
/// What readers trip over.
const WORDS: [&str; 34] = [
    "0",
    "-1",
    "1",
    "255",
    "256",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e309",
    "-0.0",
    "0.1",
    "NaN",
    "inf",
    "1e-320",
    "null",
    "true",
    "{}",
    "[]",
    "\"",
    ",",
    ":",
    "\n",
    "\t",
    "%",
    "\u{feff}",
    "\u{0}",
    "é",
    "\u{1f600}",
    "[1-4294967295]",
    "0-4294967295",
];

/// Makes inputs of recordings, the same ones for the same seed.
#[derive(Debug)]
pub struct Mutator {
    random: ChaCha8Rng,
}

impl Mutator {
    /// A mutator for one input.
    pub fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// An input.
    pub fn input(&mut self, corpus: &[&[u8]]) -> Vec<u8> {
        let mut input = self.pick(corpus).to_vec();
        let is_json = matches!(input.first(), Some(b'{' | b'['));
        if is_json
            && self.random.random_bool(0.6)
            && let Ok(mut document) = serde_json::from_slice(&input)
        {
            for _ in 0..self.random.random_range(1..=4_u32) {
                self.change_node(&mut document);
            }
            input = document.to_string().into_bytes();
            if self.random.random_bool(0.8) {
                return input;
            }
        }
        for _ in 0..self.random.random_range(1..=6_u32) {
            self.change(&mut input, corpus);
        }
        input.truncate(LENGTH_MAX);
        input
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.random.random_range(0..from.len())]
    }

    /// A part of at most so many bytes.
    fn range(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let from = self.random.random_range(0..=length);
        let most = most.min(length - from);
        from..from + self.random.random_range(0..=most)
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[&[u8]]) {
        match self.random.random_range(0..8) {
            0 if !input.is_empty() => {
                let at = self.random.random_range(0..input.len());
                input[at] ^= 1 << self.random.random_range(0..8_u32);
            }
            1 if !input.is_empty() => {
                let at = self.random.random_range(0..input.len());
                input[at] = self.random.random();
            }
            2 => {
                let range = self.range(input.len(), 64);
                input.drain(range);
            }
            3 => {
                let range = self.range(input.len(), 256);
                let (part, at) = (input[range].to_vec(), self.random.random_range(0..=input.len()));
                input.splice(at..at, part);
            }
            4 => {
                let other = self.pick(corpus);
                let range = self.range(other.len(), 256);
                let at = self.range(input.len(), 64);
                input.splice(at, other[range].iter().copied());
            }
            5 => {
                let word = self.pick(&WORDS);
                let at = self.range(input.len(), 8);
                input.splice(at, word.bytes());
            }
            6 => self.change_number(input),
            _ => {
                let length = self.random.random_range(0..=input.len());
                input.truncate(length);
            }
        }
    }

    /// Replaces a number by another.
    fn change_number(&mut self, input: &mut Vec<u8>) {
        let from = self.random.random_range(0..=input.len());
        let Some(first) = input[from..].iter().position(u8::is_ascii_digit) else { return };
        let first = from + first;
        let length = input[first..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let word = self.pick(&WORDS[..18]);
        input.splice(first..first + length, word.bytes());
    }

    /// Changes one node of a document.
    fn change_node(&mut self, document: &mut Value) {
        let mut node = document;
        loop {
            let children = match node {
                Value::Array(items) => items.len(),
                Value::Object(fields) => fields.len(),
                _ => 0,
            };
            if children == 0 || self.random.random_bool(0.1) {
                break;
            }
            let nth = self.random.random_range(0..children);
            let next = match node {
                Value::Array(items) => items.get_mut(nth),
                Value::Object(fields) => fields.values_mut().nth(nth),
                _ => None,
            };
            let Some(next) = next else { return };
            node = next;
        }
        *node = self.value();
    }

    fn value(&mut self) -> Value {
        let word = self.pick(&WORDS);
        match self.random.random_range(0..4) {
            0 => Value::String(word.to_owned()),
            1 => Value::Array(vec![Value::String(word.to_owned()); self.random.random_range(0..5)]),
            2 => Value::String(word.repeat(self.random.random_range(0..400))),
            _ => serde_json::from_str(word).unwrap_or(Value::Null),
        }
    }
}
