//! Weights, optimiser and step number in one safetensors file, written whole or not at all.

use crate::args::{ModelKind, TrainArgs};
use crate::error::TrainError;
use crate::model::SampleModel;
use crate::optimiser::Optimiser;
use candle_core::{DType, Device, Tensor, safetensors};
use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The layout of the file.
const VERSION: i64 = 1;
const META: &str = "meta";

/// Identity and progress of the job: version, step, seed, batch, model.
fn meta(args: &TrainArgs, step: u64) -> [i64; 5] {
    let kind = match args.model {
        ModelKind::Mlp => 0,
        ModelKind::Cnn => 1,
        ModelKind::Memory => 2,
    };
    [VERSION, step.cast_signed(), args.seed.cast_signed(), i64::from(args.batch), kind]
}

/// The names of the tensors that belong to the weights of this number.
fn names(index: usize) -> (String, String) {
    (format!("weights.{index}"), format!("velocity.{index}"))
}

pub(crate) fn save(
    path: &Path,
    args: &TrainArgs,
    step: u64,
    model: &SampleModel,
    optimiser: &Optimiser,
) -> Result<(), TrainError> {
    let mut tensors = HashMap::new();
    tensors.insert(META.to_owned(), Tensor::new(&meta(args, step), &Device::Cpu)?);
    for (index, (weights, velocity)) in model.weights.iter().zip(&optimiser.velocities).enumerate()
    {
        let (for_weights, for_velocity) = names(index);
        tensors.insert(for_weights, weights.as_tensor().clone());
        tensors.insert(for_velocity, velocity.clone());
    }
    let unwritable = |cause| TrainError::unwritable(path)(cause);
    let temporary = tempfile::Builder::new()
        .prefix(".tandem-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder(path))
        .map_err(unwritable)?;
    safetensors::save(&tensors, temporary.path())
        .map_err(|error| unwritable(io::Error::other(error)))?;
    // fsync before the rename: the file was written by its path, not through this handle.
    File::open(temporary.path()).and_then(|file| file.sync_all()).map_err(unwritable)?;
    temporary.persist(path).map_err(|error| unwritable(error.error))?;
    Ok(())
}

/// Puts the checkpoint into model and optimiser and returns the last step done; 0 if there is none.
pub(crate) fn load(
    path: &Path,
    args: &TrainArgs,
    model: &SampleModel,
    optimiser: &mut Optimiser,
) -> Result<u64, TrainError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            // An unwritable folder is reported before the training.
            tempfile::tempfile_in(folder(path)).map_err(TrainError::unwritable(path))?;
            return Ok(0);
        }
        Err(cause) => return Err(TrainError::unreadable(path)(cause)),
    };
    let wrong = |why: &str| TrainError::Checkpoint { path: path.to_owned(), why: why.to_owned() };
    let tensors = safetensors::load_buffer(&bytes, &Device::Cpu)
        .map_err(|_| wrong("is damaged, or no checkpoint"))?;
    let found = tensors.get(META).and_then(|meta| meta.to_vec1::<i64>().ok());
    let found = found.ok_or_else(|| wrong("is no checkpoint of tandem-train"))?;
    let step = match found.get(1) {
        Some(&step) if step >= 0 => step.cast_unsigned(),
        _ => return Err(wrong("is no checkpoint of tandem-train")),
    };
    if found != meta(args, step) {
        return Err(wrong("is the checkpoint of another model, batch or seed"));
    }
    let take = |name: String, like: &Tensor| {
        let stored = tensors
            .get(&name)
            .filter(|stored| stored.shape() == like.shape() && stored.dtype() == DType::F32);
        stored.cloned().ok_or_else(|| wrong(&format!("lacks {name}")))
    };
    let pairs = model.weights.iter().zip(&mut optimiser.velocities);
    for (index, (weights, velocity)) in pairs.enumerate() {
        let (for_weights, for_velocity) = names(index);
        weights.set(&take(for_weights, weights)?)?;
        *velocity = take(for_velocity, velocity)?;
    }
    Ok(step)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
