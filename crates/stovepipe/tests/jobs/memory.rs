//! The whole model exists nowhere: a process makes the layers of its own stages, one at a time.

use peak_alloc::PeakAlloc;
use stovepipe::Flex;
use stovepipe::Mpi;
use stovepipe::burn::nn::LinearConfig;
use stovepipe::burn::tensor::Tensor;
use stovepipe::{LayerCosts, Pipeline, Sequential};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const WIDTH: usize = 1024;
const LAYERS: usize = 16;
/// Mebibytes of one layer.
const LAYER: f32 = 4.0;
/// Copies of one layer that its initialization holds at most: it is made twice and compared.
const COPIES: f32 = 5.0;

pub(crate) fn run(_: &[String]) -> Result<(), String> {
    let mpi = Mpi::world().map_err(|error| error.to_string())?;
    let ranks = mpi.ranks();
    let mut model = Sequential::<Tensor<2>>::new();
    for layer in 0..LAYERS {
        let init = |device: &_| LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(device);
        model = model.push_module(format!("{layer}"), init, |m, x: Tensor<2>| m.forward(x));
    }
    MEMORY.reset_peak_usage();
    let pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .layer_costs(LayerCosts::Uniform)
        .stages(ranks)
        .transport(mpi)
        .build();
    let peak = MEMORY.peak_usage_as_mb();
    drop(pipeline.map_err(|error| error.to_string())?);
    let (own, whole) = (LAYER * (LAYERS / ranks) as f32, LAYER * LAYERS as f32);
    if peak < own || peak > own + COPIES * LAYER || peak > 0.7 * whole {
        return Err(format!("{peak} MiB for {own} of {whole} MiB of parameters"));
    }
    Ok(())
}
