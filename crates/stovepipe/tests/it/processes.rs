//! Pipelines of which each rank is built and driven apart, as in processes, over in-process
//! channels: the same bits as in one piece, and refused where ranks were set up differently.

use stovepipe::burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use stovepipe::burn::module::ParamGroup;
use stovepipe::burn::optim::decay::WeightDecayConfig;
use stovepipe::burn::optim::{AdamConfig, ModuleOptimizer, SgdConfig};
use stovepipe::burn::tensor::Tensor;
use stovepipe::partition::Explicit;
use stovepipe::recompute::{ExceptLast, Never};
use stovepipe::schedule::{GPipe, OneFOneB};
use stovepipe::transport::InProcess;
use stovepipe::{BuildError, Builder, Packet};
use stovepipe_testkit::{Bits, Classifier, Setup, Tokens, batch, build, on_ranks, parameter_bits};

type ToyBuilder = Builder<Tokens, Tensor<3>, Tokens>;

fn builder(stages: usize) -> ToyBuilder {
    let (schedule, policy) = (Box::new(OneFOneB), Box::new(ExceptLast));
    Setup { stages, micro_batches: 3, schedule, policy, ..Setup::default() }.builder()
}

/// Everything that a pipeline says and becomes.
fn record(mut pipeline: Classifier) -> (Vec<u64>, Vec<u8>, Bits) {
    let mut numbers = Vec::new();
    for step in 0..2 {
        let (x, y) = batch(7, step);
        let done = pipeline.step(x.clone(), y.clone()).expect("a step");
        pipeline.synchronize().expect("what this process has");
        numbers.extend([done.loss, pipeline.evaluate(x, y).expect("evaluates").loss]);
    }
    let predicted = pipeline.predict(batch(5, 9).0).expect("predicts").into_data();
    let parameters = parameter_bits(&mut pipeline);
    (numbers.into_iter().map(f64::to_bits).collect(), predicted.as_bytes().to_vec(), parameters)
}

#[test]
fn ranks_built_apart_compute_the_same_bits() {
    let (numbers, predicted, parameters) = record(builder(3).build().expect("a pipeline"));
    let ranks = on_ranks(3, |_, endpoint| {
        record(builder(3).transport(endpoint).build().expect("a pipeline"))
    });
    let mut all = Bits::new();
    for (own_numbers, own_predicted, own) in ranks {
        assert_eq!(own_numbers, numbers);
        assert!(own_predicted == predicted);
        assert!(!own.is_empty());
        for (name, bytes) in own {
            assert!(all.insert(name, bytes).is_none(), "a parameter is on two ranks");
        }
    }
    assert!(all == parameters);
}

#[test]
fn timelines_and_contributions_are_put_together() {
    let ranks = on_ranks(2, |rank, endpoint| {
        let mut pipeline = builder(2).transport(endpoint).build().expect("a pipeline");
        assert_eq!(pipeline.process(), rank);
        let (x, y) = batch(6, 0);
        let own = pipeline.step(x, y).expect("a step").timeline;
        assert!(own.spans(1 - rank).is_empty() && !own.spans(rank).is_empty());
        let whole = pipeline.gather_timeline(&own).expect("a timeline");
        assert_eq!(whole.spans(rank), own.spans(rank));
        let program = pipeline.program(6).expect("a program");
        for rank in 0..2 {
            assert!(
                whole.spans(rank).iter().map(|span| span.action).eq(program.row(rank).to_vec())
            );
            assert!(whole.update(rank).is_some());
        }
        pipeline.gather(vec![rank as u8]).expect("contributions")
    });
    assert_eq!(ranks, [[[0], [1]], [[0], [1]]]);

    // In one piece there is nothing to put together.
    let mut alone = build(Setup { stages: 2, ..Setup::default() });
    let (x, y) = batch(6, 0);
    let own = alone.step(x, y).expect("a step").timeline;
    assert_eq!(alone.gather_timeline(&own).expect("a timeline"), own);
    assert_eq!(alone.gather(vec![7]).expect("its own"), [[7]]);
}

/// Sets rank 2 of three up otherwise, and returns what it says; all must say the same.
fn refusal(other: fn(ToyBuilder) -> ToyBuilder, samples: usize) -> String {
    let said = on_ranks(3, move |rank, endpoint| {
        let builder = builder(3).transport(endpoint);
        let builder = if rank == 2 { other(builder) } else { builder };
        let mut pipeline = builder.build().expect("a pipeline");
        let (x, y) = batch(if rank == 2 { samples } else { 7 }, 0);
        let error = pipeline.step(x, y).expect_err("refused").to_string();
        // Nothing has happened, so all can go on, if they agree.
        pipeline.gather(Vec::new()).expect("they agree on that");
        error
    });
    assert!(said.iter().all(|error| *error == said[0]), "{said:?}");
    said[0].clone()
}

#[test]
fn ranks_that_were_set_up_differently_refuse_before_anything_runs() {
    type Case = (fn(ToyBuilder) -> ToyBuilder, usize, &'static str);
    let cases: [Case; 13] = [
        (|b| b, 8, "rank 2 differs from the others in the batch"),
        (|b| b.seed(8), 7, "in the seed: 8 instead of 7"),
        (|b| b.micro_batches(2), 7, "the number of micro-batches: 2 instead of 3"),
        (|b| b.schedule(GPipe::default()), 7, "in the plan"),
        (|b| b.checkpoint(Never), 7, "in what is recomputed"),
        (|b| b.learning_rate(0.5), 7, "the call: step at learning rate 0.5"),
        (|b| b.partitioner(Explicit::new(cut())), 7, "the cut into stages"),
        (|b| b.optimizer(SgdConfig::new().init()), 7, "the optimizer"),
        (|b| b.optimizer(AdamConfig::new().with_beta_1(0.8).init()), 7, "the optimizer"),
        (|b| b.optimizer(decaying(ParamGroup::all())), 7, "such as weight decay"),
        (|b| b.optimizer(decaying(ParamGroup::from_predicate("head"))), 7, "the optimizer"),
        (|b| b.learning_rates(slower("head")), 7, "the learning rates of groups"),
        (|b| b.learning_rates(slower("head.bias")), 7, "the learning rates of groups"),
    ];
    for (other, samples, expected) in cases {
        let said = refusal(other, samples);
        assert!(said.contains(expected), "{said}, not {expected}");
    }
}

#[test]
fn there_is_one_process_for_each_rank() {
    let endpoint = InProcess::<Packet>::group(2).swap_remove(0);
    let error = builder(3).transport(endpoint).build().err().expect("refused");
    assert!(matches!(error, BuildError::Processes { processes: 2, ranks: 3 }), "{error}");
}

/// Adam with a small weight decay for these parameters.
fn decaying(group: ParamGroup) -> ModuleOptimizer {
    let decaying = AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(1e-4)));
    AdamConfig::new().init().with_group(group, decaying.build(), None)
}

/// A smaller learning rate for parameters with this in their paths.
fn slower(part: &str) -> ModuleLrScheduler {
    ModuleLrScheduler::new(1e-2).with_group(ParamGroup::from_predicate(part), 1e-3)
}

fn cut() -> stovepipe::partition::Partition {
    "5,1,1".parse().expect("a partition")
}
