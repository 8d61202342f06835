//! The models. None has a layer in which samples of a batch see each other (no batch normalisation) or
//! that draws random numbers (no dropout): computing a batch in parts is exact.

use crate::args::ModelKind;
use crate::data::{Batch, CLASSES, FEATURES, SIDE, TOKENS, setup};
use candle_core::{D, Device, Result, Tensor, Var};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

const HIDDEN: usize = 512;
const CHANNELS: [usize; 2] = [8, 16];
const KERNEL: usize = 3;
const EMBEDDING: usize = 64;

pub(crate) struct SampleModel {
    kind: ModelKind,
    /// Weights and offsets by turns, in the order of the layers.
    pub(crate) weights: Vec<Var>,
}

impl SampleModel {
    pub(crate) fn new(kind: ModelKind, seed: u64) -> Result<Self> {
        let random = &mut setup(seed);
        let mut weights = Vec::new();
        match kind {
            ModelKind::Mlp => {
                for (inputs, outputs) in [(FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)] {
                    weights.push(drawn(random, &[inputs, outputs], inputs)?);
                    weights.push(zeros(&[outputs])?);
                }
            }
            ModelKind::Cnn => {
                let mut inputs = 1;
                for outputs in CHANNELS {
                    let fan_in = inputs * KERNEL * KERNEL;
                    weights.push(drawn(random, &[outputs, inputs, KERNEL, KERNEL], fan_in)?);
                    weights.push(zeros(&[1, outputs, 1, 1])?);
                    inputs = outputs;
                }
                // Every convolution is followed by pooling, which halves both sides.
                let side = SIDE >> CHANNELS.len();
                let inputs = inputs * side * side;
                weights.push(drawn(random, &[inputs, CLASSES], inputs)?);
                weights.push(zeros(&[CLASSES])?);
            }
            ModelKind::Memory => {
                weights.push(drawn(random, &[TOKENS, EMBEDDING], EMBEDDING)?);
                weights.push(drawn(random, &[EMBEDDING, CLASSES], EMBEDDING)?);
                weights.push(zeros(&[CLASSES])?);
            }
        }
        Ok(Self { kind, weights })
    }

    /// The step size that suits the model.
    pub(crate) fn learning_rate(&self) -> f64 {
        match self.kind {
            ModelKind::Mlp | ModelKind::Cnn => 0.01,
            ModelKind::Memory => 0.3,
        }
    }

    /// The mean loss of a batch or a part of one.
    pub(crate) fn loss(&self, batch: &Batch) -> Result<Tensor> {
        cross_entropy(&self.scores(&batch.samples)?, &batch.classes)
    }

    fn scores(&self, samples: &Tensor) -> Result<Tensor> {
        let layer = |input: &Tensor, index: usize| {
            input.matmul(&self.weights[index])?.broadcast_add(&self.weights[index + 1])
        };
        match self.kind {
            ModelKind::Mlp => {
                // Smooth, so that rounding stays rounding: at a kink a difference of one part in ten
                // million can decide which way a unit goes.
                let hidden = layer(&layer(samples, 0)?.silu()?, 2)?.silu()?;
                layer(&hidden, 4)
            }
            ModelKind::Cnn => {
                let mut image = samples.clone();
                for index in [0, 2] {
                    let convolved = image.conv2d(&self.weights[index], KERNEL / 2, 1, 1, 1)?;
                    let moved = convolved.broadcast_add(&self.weights[index + 1])?;
                    image = moved.relu()?.max_pool2d(2)?;
                }
                layer(&image.flatten_from(1)?, 4)
            }
            ModelKind::Memory => {
                let (count, tokens) = samples.dims2()?;
                let rows = self.weights[0].index_select(&samples.flatten_all()?, 0)?;
                let means = rows.reshape((count, tokens, EMBEDDING))?.mean(1)?;
                layer(&means, 1)
            }
        }
    }
}

fn cross_entropy(scores: &Tensor, classes: &Tensor) -> Result<Tensor> {
    let shifted = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?;
    let total = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    let logarithms = shifted.broadcast_sub(&total)?;
    logarithms.gather(&classes.unsqueeze(1)?, 1)?.mean_all()?.neg()
}

/// Weights that keep the size of what passes through them.
fn drawn(random: &mut ChaCha8Rng, shape: &[usize], fan_in: usize) -> Result<Var> {
    let bound = (6.0 / fan_in as f32).sqrt();
    let count = shape.iter().product();
    let values: Vec<f32> =
        (0..count).map(|_| (random.random::<f32>() * 2.0 - 1.0) * bound).collect();
    Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)
}

fn zeros(shape: &[usize]) -> Result<Var> {
    Var::zeros(shape, candle_core::DType::F32, &Device::Cpu)
}
