//! Ranks that are run alone on recorded inputs, and what is predicted of them from measured layers.

use anyhow::{Context, Result};
use peak_alloc::PeakAlloc;
use serde::Serialize;
use stovepipe::burn::optim::AdamConfig;
use stovepipe::partition::{Costs, Uniform};
use stovepipe::prelude::*;
use stovepipe::recompute::lower;
use stovepipe::schedule::{Edges, GPipe, OneFOneB, Shape, StageMemory};
use stovepipe::tune::{LayerProfile, Profile};
use stovepipe::{Profiling, Rehearsal};
use stovepipe_benches::{BenchBuilder, Model};
use stovepipe_testkit::MakeSchedule;

/// The most that a rank holds.
#[derive(Serialize)]
pub(crate) struct Peak {
    pub(crate) schedule: String,
    pub(crate) policy: String,
    pub(crate) stages: usize,
    pub(crate) micro_batches: usize,
    pub(crate) rank: usize,
    pub(crate) predicted: u64,
    pub(crate) measured: u64,
    /// Of it, beyond parameters, gradients, optimizer state and the threads' own.
    pub(crate) activations: u64,
}

impl Peak {
    /// The predicted bytes, divided by what was measured.
    pub(crate) fn ratio(&self) -> f64 {
        self.predicted as f64 / self.measured as f64
    }
}

/// A model whose ranks are run, and the profile that predicts them.
pub(crate) struct Rehearsals {
    pub(crate) model: Model,
    pub(crate) profile: Profile,
}

/// How ranks run.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) model: Model,
    pub(crate) stages: usize,
    pub(crate) micro_batches: usize,
    pub(crate) schedule: MakeSchedule,
    pub(crate) policy: &'a dyn Fn() -> Box<dyn CheckpointPolicy>,
}

pub(crate) const GPIPE: MakeSchedule = || Box::new(GPipe::default());
pub(crate) const ONE_F_ONE_B: MakeSchedule = || Box::new(OneFOneB);

fn builder(model: Model) -> BenchBuilder {
    model.builder(Flex::new()).optimizer(AdamConfig::new().init()).layer_costs(LayerCosts::Uniform)
}

impl Setting<'_> {
    fn builder(&self) -> BenchBuilder {
        builder(self.model)
            .stages(self.stages)
            .micro_batches(self.micro_batches)
            .schedule((self.schedule)())
            .checkpoint((self.policy)())
    }
}

impl Rehearsals {
    pub(crate) fn new(model: Model) -> Result<Self> {
        let sizes: Vec<usize> = std::iter::successors(Some(1), |size| Some(2 * size))
            .take_while(|&size| size < model.batch)
            .chain([model.batch])
            .collect();
        let profiling = Profiling::new(sizes).runs(1).warm_up(1).together(2).memory(PeakAlloc);
        let (x, y) = model.batch();
        let profile = builder(model).profile(&profiling, x, y)?;
        Ok(Self { model, profile })
    }

    /// The profile of a model with another number of the same layers.
    fn profile_of(&self, layers: usize) -> Result<Profile> {
        let measured = self.profile.layers();
        let inner = |place: usize| match place {
            0 => &measured[0],
            last if last + 1 == layers => &measured[measured.len() - 1],
            _ => &measured[measured.len() / 2],
        };
        let named =
            |place: usize| LayerProfile { name: format!("blocks.{place}"), ..inner(place).clone() };
        let profile = Profile::new("grown", (0..layers).map(named).collect::<Vec<_>>())?;
        Ok(profile.with_workspace(self.profile.workspace()))
    }

    /// The most that each rank will hold, and how much of it isn't activations.
    pub(crate) fn predict(&self, setting: Setting<'_>) -> Result<Vec<(u64, u64)>> {
        let Setting { model, stages, micro_batches, .. } = setting;
        let profile = self.profile_of(model.layers)?;
        let partition = Uniform.partition(&Costs::uniform(model.layers)?, stages)?;
        let memory: Vec<StageMemory> = partition
            .ranges()
            .map(|layers| profile.stage_memory(layers, model.batch.div_ceil(micro_batches)))
            .collect::<Result<_, _>>()?;
        let plan = (setting.schedule)().plan(Shape::new(stages, micro_batches))?;
        let (sizes, policy) = (partition.sizes(), (setting.policy)());
        let program = lower(&plan, &sizes, &*policy, &Edges::chain(stages))?;
        let needs = |rank: usize| {
            let stage = &memory[plan.stages_of(rank)[0].index()];
            let gradients: u64 = stage.layers.iter().map(|layer| layer.gradients).sum();
            (program.peak_bytes(rank, &memory), stage.fixed + stage.workspace + gradients)
        };
        Ok((0..stages).map(needs).collect())
    }

    /// The most that a rank holds in the second of two steps, when the optimizer has its state.
    fn measure(&self, setting: Setting<'_>, rank: usize) -> Result<u64> {
        let (x, y) = setting.model.batch();
        let peaks = setting.builder().rehearse(&Rehearsal::new(rank, PeakAlloc), x, y)?;
        peaks.last().copied().context("there was no step")
    }

    /// Every rank, predicted and measured.
    pub(crate) fn peaks(&self, setting: Setting<'_>) -> Result<Vec<Peak>> {
        let predicted = self.predict(setting)?.into_iter().enumerate();
        predicted.map(|(rank, bytes)| self.peak(setting, rank, bytes)).collect()
    }

    /// The rank that holds most, as is predicted.
    pub(crate) fn fullest(&self, setting: Setting<'_>) -> Result<Option<Peak>> {
        let predicted = self.predict(setting)?.into_iter().enumerate();
        let fullest = predicted.max_by_key(|(_, (bytes, _))| *bytes);
        fullest.map(|(rank, bytes)| self.peak(setting, rank, bytes)).transpose()
    }

    fn peak(
        &self,
        setting: Setting<'_>,
        rank: usize,
        (predicted, other): (u64, u64),
    ) -> Result<Peak> {
        let measured = self.measure(setting, rank)?;
        Ok(Peak {
            schedule: (setting.schedule)().name().to_owned(),
            policy: (setting.policy)().name().to_owned(),
            stages: setting.stages,
            micro_batches: setting.micro_batches,
            rank,
            predicted,
            measured,
            activations: measured.saturating_sub(other),
        })
    }
}
