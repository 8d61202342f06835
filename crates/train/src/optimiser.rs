//! Gradient descent with momentum, and gradients summed over the parts of a batch.

use crate::data::Batch;
use crate::model::SampleModel;
use candle_core::{Result, Tensor};

const MOMENTUM: f64 = 0.9;

pub(crate) struct Optimiser {
    /// One per tensor of weights.
    pub(crate) velocities: Vec<Tensor>,
}

impl Optimiser {
    pub(crate) fn new(model: &SampleModel) -> Result<Self> {
        let still = model.weights.iter().map(|weights| weights.zeros_like());
        Ok(Self { velocities: still.collect::<Result<_>>()? })
    }

    /// One step on one batch, computed in `accum` parts; returns the mean loss of the batch.
    ///
    /// Every part counts by its share of the samples, so that losses and gradients add up to those of
    /// the whole batch.
    pub(crate) fn step(&mut self, model: &SampleModel, batch: &Batch, accum: usize) -> Result<f64> {
        let size = batch.classes.dim(0)?;
        let mut loss = 0.0;
        let mut sums: Vec<Option<Tensor>> = vec![None; model.weights.len()];
        for index in 0..accum {
            let (start, end) = (index * size / accum, (index + 1) * size / accum);
            let share = (end - start) as f64 / size as f64;
            let mean = model.loss(&batch.part(start, end)?)?;
            loss += f64::from(mean.to_scalar::<f32>()?) * share;
            let gradients = mean.affine(share, 0.0)?.backward()?;
            for (sum, weights) in sums.iter_mut().zip(&model.weights) {
                let Some(gradient) = gradients.get(weights) else { continue };
                *sum = Some(match sum.take() {
                    Some(sum) => (sum + gradient)?,
                    None => gradient.clone(),
                });
            }
        }
        for ((weights, velocity), sum) in model.weights.iter().zip(&mut self.velocities).zip(sums) {
            let Some(gradient) = sum else { continue };
            *velocity = (velocity.affine(MOMENTUM, 0.0)? + gradient)?.detach();
            weights.set(&(weights.as_tensor() - velocity.affine(model.learning_rate(), 0.0)?)?)?;
        }
        Ok(loss)
    }
}
