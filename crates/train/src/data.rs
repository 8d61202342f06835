//! Generated data: the batch of a step follows from the seed and the number of the step alone, so that a
//! job that continues needs no state of a generator.

use crate::args::ModelKind;
use candle_core::{Device, Result, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Number of classes.
pub(crate) const CLASSES: usize = 10;
/// Numbers in a sample of the dense model.
pub(crate) const FEATURES: usize = 256;
/// Width and height of an image.
pub(crate) const SIDE: usize = 16;
/// Rows of the table of embeddings.
pub(crate) const TOKENS: usize = 1 << 15;
/// Rows that one sample looks up.
const TOKENS_PER_SAMPLE: usize = 32;
/// How much of the class is in a sample, beside noise from −1 to 1.
const SIGNAL: f32 = 0.3;
/// The stream of the generator that draws what does not belong to a step.
const SETUP_STREAM: u64 = u64::MAX;

/// Samples and the class of each.
pub(crate) struct Batch {
    pub(crate) samples: Tensor,
    pub(crate) classes: Tensor,
}

impl Batch {
    /// The samples from `start` to before `end`.
    pub(crate) fn part(&self, start: usize, end: usize) -> Result<Self> {
        let length = end - start;
        let samples = self.samples.narrow(0, start, length)?.contiguous()?;
        let classes = self.classes.narrow(0, start, length)?.contiguous()?;
        Ok(Self { samples, classes })
    }
}

pub(crate) fn generator(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random
}

/// The generator of the first weights.
pub(crate) fn setup(seed: u64) -> ChaCha8Rng {
    generator(seed, SETUP_STREAM)
}

/// What the data of a job have in common: a typical sample of each class.
pub(crate) struct BatchSource {
    kind: ModelKind,
    seed: u64,
    size: usize,
    typical: Vec<Vec<f32>>,
}

impl BatchSource {
    pub(crate) fn new(kind: ModelKind, seed: u64, size: usize) -> Self {
        let numbers = match kind {
            ModelKind::Mlp => FEATURES,
            ModelKind::Cnn => SIDE * SIDE,
            ModelKind::Memory => 0,
        };
        let mut random = generator(seed, SETUP_STREAM - 1);
        let typical = (0..CLASSES).map(|_| (0..numbers).map(|_| noise(&mut random)).collect());
        Self { kind, seed, size, typical: typical.collect() }
    }

    /// The batch of a step.
    pub(crate) fn batch(&self, step: u64) -> Result<Batch> {
        let mut random = generator(self.seed, step);
        let drawn: Vec<u32> =
            (0..self.size).map(|_| random.random_range(0..CLASSES as u32)).collect();
        let classes = Tensor::new(drawn.as_slice(), &Device::Cpu)?;
        let samples = match self.kind {
            ModelKind::Mlp => self.numbers(&drawn, &mut random, &[FEATURES])?,
            ModelKind::Cnn => self.numbers(&drawn, &mut random, &[1, SIDE, SIDE])?,
            ModelKind::Memory => tokens(&drawn, &mut random)?,
        };
        Ok(Batch { samples, classes })
    }

    fn numbers(&self, drawn: &[u32], random: &mut ChaCha8Rng, shape: &[usize]) -> Result<Tensor> {
        let mut values = Vec::with_capacity(self.size * shape.iter().product::<usize>());
        for &class in drawn {
            let typical = &self.typical[class as usize];
            values.extend(typical.iter().map(|&value| SIGNAL * value + noise(random)));
        }
        Tensor::from_vec(values, [&[self.size], shape].concat(), &Device::Cpu)
    }
}

/// Half of the tokens of a sample tell its class by their last digit. Some tokens are far more
/// frequent than others, as words are.
fn tokens(drawn: &[u32], random: &mut ChaCha8Rng) -> Result<Tensor> {
    let (all, kinds) = (TOKENS as u32, CLASSES as u32);
    let mut values = Vec::with_capacity(drawn.len() * TOKENS_PER_SAMPLE);
    for &class in drawn {
        for position in 0..TOKENS_PER_SAMPLE {
            let token = (random.random::<f32>().powi(4) * TOKENS as f32) as u32;
            let told = token / kinds * kinds + class;
            values.push(if position % 2 == 0 { told.min(all - 1) } else { token.min(all - 1) });
        }
    }
    Tensor::from_vec(values, (drawn.len(), TOKENS_PER_SAMPLE), &Device::Cpu)
}

/// A number from −1 to 1.
fn noise(random: &mut ChaCha8Rng) -> f32 {
    random.random::<f32>() * 2.0 - 1.0
}
