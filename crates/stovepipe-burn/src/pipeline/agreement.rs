//! The facts that ranks in several processes compare before they run anything.

use stovepipe_runtime::Agreement;

use crate::parameters::initialize::id_of;
use crate::pipeline::Pipeline;
use crate::pipeline::optimizer_trial::describe_optimizer;
use crate::pipeline::spec::PipelineSpec;
use crate::stage::batch::{Task, Values};
use crate::value::boundary::Boundary;

/// Returns the facts that a pipeline must share with those of the other processes.
pub(crate) fn agreement_on_model(spec: &PipelineSpec) -> Agreement {
    let PipelineSpec {
        layers,
        layer_facts,
        partition,
        precision,
        scaler,
        metric_names,
        optimizer,
        settings,
        ..
    } = spec;
    let descriptions = layers.iter().zip(layer_facts).map(|(layer, facts)| {
        let floats = facts.floats.iter();
        let floats = floats.map(|float| (&float.path, &float.shape, float.is_trainable));
        let floats: Vec<_> = floats.collect();
        (&*layer.name, facts.parameters, floats, &facts.stashes, &facts.pops)
    });
    let tied: Vec<_> = settings.ties.iter().flatten().map(|tied| &tied.path).collect();
    Agreement::new()
        .with("the number of layers", layers.len())
        .with_fingerprint("the model", (descriptions.collect::<Vec<_>>(), tied))
        .with("the cut into stages", partition)
        .with("the seed", settings.seed)
        .with_fingerprint(
            "the optimizer or its settings, such as weight decay",
            describe_optimizer(optimizer, layers, layer_facts),
        )
        .with("clipping", format_args!("{:?}", settings.clipping))
        .with("atomic updates", settings.atomic_updates)
        .with("the type of computation", precision.describe())
        .with("loss scaling", format_args!("{scaler:?}"))
        .with("metrics", metric_names.join(", "))
}

impl Task {
    fn describe(&self) -> String {
        match self {
            Self::Train(rate) => format!("step at learning rate {}", rate.base()),
            Self::Accumulate => "accumulate".to_owned(),
            Self::Gradients => "gradients".to_owned(),
            Self::Evaluate => "evaluate".to_owned(),
            Self::Predict => "predict".to_owned(),
        }
    }
}

impl<I: Boundary, O: Boundary, T> Pipeline<I, O, T> {
    /// Returns the facts that processes compare before a call.
    pub(crate) fn agreement_on_call(&self, task: &Task, values: &Values) -> Agreement {
        if !self.workers.is_spread() {
            return Agreement::new();
        }
        let mut agreement = Agreement::new().with("the call", task.describe());
        if let Task::Train(rate) = task {
            let rates = self.trained.iter().map(|path| {
                let of_group = rate.lr_from_param(id_of(path), Some(path));
                of_group.to_bits()
            });
            agreement = agreement
                .with_fingerprint("the learning rates of groups", rates.collect::<Vec<_>>());
        }
        agreement
            .and(self.agreement.clone())
            .with("the number of updates so far", self.updates)
            .with_fingerprint("the batch", values)
    }
}
