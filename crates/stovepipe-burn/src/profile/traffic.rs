//! What crosses the boundaries of stages, recorded layer by layer, so that a single rank can be run.

use stovepipe_schedule::Rank;

use crate::autodiff::layer_run::LayerRun;
use crate::autodiff::tape::{Forward, Forwarded};
use crate::error::{BuildError, TrainError};
use crate::layer::context::{ForwardKey, Pass, SkipValues};
use crate::pipeline::spec::PipelineSpec;
use crate::stage::batch::Batch;
use crate::stage::routes::{SkipStore, pack};
use crate::value::packet::Packet;

/// What crosses the boundaries of stages, for each micro-batch.
pub(super) struct Traffic {
    /// The input of each stage; of the last one also the output.
    chain: Vec<Vec<Packet>>,
    /// On skip connections.
    skips: SkipStore,
}

impl Traffic {
    /// Runs all layers forward, of which one is there at a time.
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
            for layer in spec.partition.range(stage) {
                let mut layer = spec.layer(layer, rank);
                for (m, value) in values.iter_mut().enumerate() {
                    let run = LayerRun {
                        backend: &**backend,
                        device: &device,
                        pass: Pass::Train,
                        key: ForwardKey { seed: spec.settings.seed, updates: 0, micro_batch: m },
                        samples: batch.samples[m].clone(),
                        side: batch.side.get(m),
                    };
                    let inputs = std::mem::replace(value, Packet::of(Vec::new())).into_values();
                    let pop = |skip: &str| stashed[m].remove(skip);
                    let forwarded = run.forward(&mut *layer, inputs, Forward::Untaped, pop);
                    let Forwarded { outputs, stashed: new, .. } = forwarded?;
                    *value = Packet::of(outputs);
                    skips.extend(new.iter().map(|(skip, v)| ((m, skip.clone()), v.clone())));
                    stashed[m].extend(new);
                }
            }
        }
        chain.push(values);
        Ok(Self { chain, skips })
    }

    /// What goes along the edges of a stage: values behind it, or gradients before it.
    pub(super) fn packets(
        &self,
        m: usize,
        own: Option<usize>,
        routes: &[Vec<String>],
        chain: usize,
    ) -> Vec<Packet> {
        let own = own.map(|place| self.chain[place][m].clone());
        let travelling = routes.iter().flatten().filter_map(|name| {
            let key = (m, name.clone());
            self.skips.get(&key).map(|value| (key, value.clone()))
        });
        pack(m, own, routes.to_vec(), chain, &mut travelling.collect())
    }
}
