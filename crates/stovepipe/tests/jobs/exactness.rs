//! Over processes, loss, gradients, parameters and predictions are the same bits as in one process.

use std::collections::BTreeSet;

use stovepipe::Mpi;
use stovepipe::recompute::{
    Always, Budget, EveryLayers, ExceptLast, LayerActivations, Never, Selective, SqrtLayers,
};
use stovepipe::schedule::{Drain, GPipe, Interleaved1F1B, LayerMemory, OneFOneB};
use stovepipe_testkit::{Bits, Classifier, MakePolicy, MakeSchedule, batch, bits};

use crate::model::{builder, model};

const SCHEDULES: [MakeSchedule; 4] = [
    || Box::new(GPipe::default()),
    || Box::new(GPipe::new(Drain::Forward)),
    || Box::new(OneFOneB),
    || Box::new(Interleaved1F1B),
];

const POLICIES: [MakePolicy; 7] = [
    || Box::new(Never),
    || Box::new(Always),
    || Box::new(ExceptLast),
    || Box::new(EveryLayers::new(2)),
    || Box::new(SqrtLayers),
    || Box::new(Selective::new([1, 4, 6])),
    || {
        let memory = LayerMemory { activations: 100, input: 10, ..Default::default() };
        let layer = LayerActivations { memory, recompute: 1.0 };
        Box::new(Budget::new(700, vec![layer; 11]))
    },
];

/// Everything that a pipeline says and becomes.
#[derive(PartialEq, Default)]
struct Record {
    numbers: Vec<u64>,
    predictions: Vec<u8>,
    gradients: Vec<Bits>,
    /// Of this process.
    parameters: Bits,
    /// Of the parameters of all processes.
    names: BTreeSet<String>,
}

pub(crate) fn run(_: &[String]) -> Result<(), String> {
    let world = || Mpi::world().map_err(|error| error.to_string());
    // Keeps MPI going from one pipeline to the next.
    let first = world()?;
    let (rank, ranks) = (first.rank(), first.ranks());
    for schedule in SCHEDULES {
        for policy in POLICIES {
            let what = format!("{} {}, rank {rank}", schedule().name(), policy().name());
            let stages = ranks * schedule().default_stages_per_rank();
            let configured = || {
                let builder = builder(model(|x, _| x)).stages(stages);
                builder.schedule(schedule()).checkpoint(policy())
            };
            let fail = |error: &dyn std::fmt::Display| format!("{what}: {error}");
            let alone = configured().build().map_err(|e| fail(&e))?;
            let alone = record(alone).map_err(|e| fail(&e))?;
            let spread = configured().transport(world()?).build().map_err(|e| fail(&e))?;
            let spread = record(spread).map_err(|e| fail(&e))?;
            compare(alone, spread).map_err(|e| fail(&e))?;
        }
    }
    Ok(())
}

fn record(mut pipeline: Classifier) -> Result<Record, Box<dyn std::error::Error>> {
    let mut record = Record::default();
    for step in 0..3 {
        let (x, y) = batch(7, step);
        let gradients = pipeline.gradients(x.clone(), y.clone())?;
        record.gradients.push(bits(&gradients.gradients));
        if step == 1 {
            let (x, y) = batch(3, 9);
            record.numbers.push(pipeline.accumulate(x, y)?.loss.to_bits());
        }
        let done = pipeline.step(x.clone(), y.clone())?;
        let evaluation = pipeline.evaluate(x.clone(), y)?;
        let numbers = [
            gradients.loss,
            done.loss,
            done.weight,
            done.gradient_norm.unwrap_or(f64::NAN),
            done.metrics["accuracy"],
            evaluation.loss,
            evaluation.metrics["accuracy"],
        ];
        record.numbers.extend(numbers.map(f64::to_bits));
        record.predictions.extend(pipeline.predict(x)?.into_data().as_bytes());
        timeline(&mut pipeline, &done.timeline)?;
    }
    let parameters = bits(&pipeline.parameters()?);
    // Together, the processes have every parameter once.
    let names = parameters.keys().map(|name| format!("{name}\n")).collect::<String>();
    let all = pipeline.gather(names.into_bytes())?;
    let all = all.concat();
    let names: Vec<&str> = std::str::from_utf8(&all)?.lines().collect();
    let distinct: BTreeSet<&str> = names.iter().copied().collect();
    if names.len() != distinct.len() {
        return Err("a parameter is on two ranks".into());
    }
    record.names = distinct.into_iter().map(str::to_owned).collect();
    record.parameters = parameters;
    Ok(record)
}

/// Put together, a timeline has the actions of all ranks.
fn timeline(
    pipeline: &mut Classifier,
    own: &stovepipe::schedule::Timeline,
) -> Result<(), Box<dyn std::error::Error>> {
    let whole = pipeline.gather_timeline(own)?;
    let program = pipeline.program(7)?;
    for rank in 0..whole.ranks() {
        let found: Vec<_> = whole.spans(rank).iter().map(|span| span.action).collect();
        if found != program.row(rank) || whole.update(rank).is_none() {
            return Err(format!("rank {rank} has the spans {found:?}").into());
        }
    }
    Ok(())
}

fn compare(alone: Record, spread: Record) -> Result<(), String> {
    let Record { numbers, predictions, gradients, parameters, names } = spread;
    for (what, same) in [
        ("losses, norms or metrics", numbers == alone.numbers),
        ("predictions", predictions == alone.predictions),
        ("parameters", names == alone.names),
    ] {
        if !same {
            return Err(format!("other {what} than in one process"));
        }
    }
    let parts = gradients.iter().zip(&alone.gradients).chain([(&parameters, &alone.parameters)]);
    for (own, all) in parts {
        if let Some((name, _)) = own.iter().find(|(name, bytes)| all.get(*name) != Some(*bytes)) {
            return Err(format!("other bits than in one process in {name}"));
        }
        if own.is_empty() || own.len() == all.len() {
            return Err("this process should have a part of the parameters".to_owned());
        }
    }
    Ok(())
}
