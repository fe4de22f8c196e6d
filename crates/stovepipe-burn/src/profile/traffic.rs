//! The packets that cross the boundaries of stages, recorded layer by layer, so that a single
//! rank can be run.

use stovepipe_schedule::Rank;

use crate::autodiff::layer_run::LayerRun;
use crate::autodiff::tape::{Forward, Forwarded};
use crate::error::build::BuildError;
use crate::error::stage::StageError;
use crate::error::train::TrainError;
use crate::layer::context::{ForwardKey, Pass, SkipValues};
use crate::pipeline::spec::PipelineSpec;
use crate::stage::batch::Batch;
use crate::stage::routes::{SkipStore, pack};
use crate::value::packet::Packet;

/// The packets that cross the boundaries of stages, for each micro-batch.
pub(super) struct Traffic {
    /// The input of each stage, and after them the output of the last one, each by micro-batch.
    chain: Vec<Vec<Packet>>,
    /// The skip values.
    skips: SkipStore,
}

impl Traffic {
    /// Runs all layers forward, with one of them made at a time, and records what crosses the
    /// boundaries.
    pub(super) fn record(
        spec: &PipelineSpec,
        batch: &Batch,
        rank: Rank,
    ) -> Result<Self, TrainError> {
        let device = spec.device(rank).clone();
        let backend = &spec.settings.backend;
        let received = batch.inputs.iter().map(|input| backend.receive(input.clone(), &device));
        let mut values = received.collect::<Result<Vec<Packet>, _>>().map_err(BuildError::from)?;
        let mut stashed: Vec<SkipValues> = vec![SkipValues::new(); values.len()];
        let (mut chain, mut skips) = (Vec::new(), SkipStore::new());
        for stage in 0..spec.partition.parts() {
            chain.push(values.clone());
            for index in spec.partition.range(stage) {
                let mut layer = spec.layer(index, rank);
                for (micro_batch, value) in values.iter_mut().enumerate() {
                    let run = LayerRun {
                        backend: &**backend,
                        device: &device,
                        pass: Pass::Train,
                        key: ForwardKey { seed: spec.settings.seed, updates: 0, micro_batch },
                        samples: batch.samples[micro_batch].clone(),
                        side: batch.side.get(micro_batch),
                    };
                    let inputs = std::mem::replace(value, Packet::of(Vec::new())).into_values();
                    let pop = |skip: &str| stashed[micro_batch].remove(skip);
                    let forwarded = run.forward(&mut *layer, inputs, Forward::Untaped, pop);
                    let Forwarded { outputs, stashed: new, .. } = forwarded?;
                    if index + 1 == spec.layers.len() {
                        run.check_output(&*layer, &outputs).map_err(StageError::from)?;
                    }
                    *value = Packet::of(outputs);
                    skips.extend(
                        new.iter()
                            .map(|(skip, value)| ((micro_batch, skip.clone()), value.clone())),
                    );
                    stashed[micro_batch].extend(new);
                }
            }
        }
        chain.push(values);
        Ok(Self { chain, skips })
    }

    /// Returns the packets that go along the edges of a stage, behind it or before it.
    ///
    /// `place` is the place in the chain of the value that the edge at `chain_edge` carries.
    /// `routes` names the skip values of each edge.
    pub(super) fn packets(
        &self,
        micro_batch: usize,
        place: Option<usize>,
        routes: &[Vec<String>],
        chain_edge: usize,
    ) -> Vec<Packet> {
        let chain_packet = place.map(|place| self.chain[place][micro_batch].clone());
        let travelling = routes.iter().flatten().filter_map(|name| {
            let key = (micro_batch, name.clone());
            self.skips.get(&key).map(|value| (key, value.clone()))
        });
        pack(micro_batch, chain_packet, routes.to_vec(), chain_edge, &mut travelling.collect())
    }
}
