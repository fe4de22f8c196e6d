//! The tuner against numbers that are known, and what it says where nothing fits.

use stovepipe_checkpoint::{
    Always, Budget, CheckpointPolicy, LayerActivations, Never, Selective, SqrtLayers,
};
use stovepipe_partition::Partition;
use stovepipe_schedule::{Drain, GPipe, Interleaved1F1B, LayerMemory, OneFOneB, Shape};
use stovepipe_tune::{Cluster, Configuration, MessageCosts, Profile, Report, TuneError, Tuner};

use crate::model::profile;

#[test]
fn the_best_number_of_micro_batches_is_that_of_the_formula() {
    // Work 32 for each stage and direction, overhead 0.5, four stages: 2 (m + 3) (32 / m + 0.5).
    let profile = profile(4, 0.5, 0.25, &[1, 128]);
    let cluster = Cluster::new(4);
    let report = Tuner::new(&profile, &cluster)
        .schedules(vec![Box::new(GPipe::default())])
        .policies(vec![Box::new(Never)])
        .ranks([4])
        .exhaustive(true)
        .tune()
        .expect("everything fits");
    let best = report.best();
    assert_eq!((best.configuration.micro_batches, best.seconds), (16, 95.0));
    assert_eq!(best.partition.sizes(), [1, 1, 1, 1]);
    let last = report
        .choices
        .iter()
        .find(|choice| choice.configuration.micro_batches == 128)
        .expect("tried");
    assert_eq!(last.seconds, 196.5);
    assert!((report.slower(last) - (196.5 / 95.0 - 1.0)).abs() < 1e-12);
    assert_eq!(report.slower(best), 0.0);
}

#[test]
fn the_best_is_the_fastest_of_all_and_a_slow_rank_gets_less() {
    let profile = profile(9, 0.0, 1.0, &[1, 8]);
    let report = Tuner::new(&profile, &Cluster::new(2).speeds([2.0, 1.0])).batch(8).tune();
    let report = report.expect("everything fits");
    let fastest = report.choices.iter().map(|choice| choice.seconds).fold(f64::INFINITY, f64::min);
    assert!(report.best().seconds <= fastest * (1.0 + Report::TOLERANCE));
    assert_eq!(report.slower(report.best()), report.best().seconds / fastest - 1.0);
    let two = report.choices.iter().find(|choice| {
        choice.configuration.ranks == 2 && choice.configuration.stages_per_rank == 1
    });
    assert_eq!(two.expect("tried").partition.sizes(), [6, 3]);
}

#[test]
fn micro_batches_of_unequal_size_are_priced_as_such() {
    // Seven samples in four micro-batches: 2, 2, 2, 1; one stage does all of it, forward and
    // backward.
    let profile = profile(1, 0.0, 1.0, &[1, 8]);
    let report = Tuner::new(&profile, &Cluster::new(1))
        .batch(7)
        .micro_batches([4])
        .policies(vec![Box::new(Never)])
        .schedules(vec![Box::new(GPipe::new(Drain::Forward))])
        .tune()
        .expect("everything fits");
    assert_eq!(report.best().seconds, 14.0);
    // Each micro-batch is counted at the larger size, with its output. When the gradients come, the
    // activations of one have gone, except its input.
    assert_eq!(report.best().memory.as_deref(), Some(&[300 + 100 + 3 * 22 + 2][..]));
}

#[test]
fn links_cost_time() {
    let profile = profile(2, 0.0, 1.0, &[8]);
    let seconds = |cluster: Cluster| {
        let tuner = Tuner::new(&profile, &cluster).ranks([2]).micro_batches([1]);
        tuner.tune().expect("fits").best().seconds
    };
    // There and back: two latencies, and twice 8 bytes. Two ranks agree three times in a step.
    assert_eq!(seconds(Cluster::new(2)), 32.0);
    let expected = 32.0 + 2.0 * (0.5 + 2.0) + 3.0 * 0.5;
    assert_eq!(seconds(Cluster::new(2).link(0.5, 4.0)), expected);
    // Within a node and between two.
    let node = |ranks| seconds(Cluster::new(2).nodes(ranks, 0.5, 4.0));
    assert_eq!((node(2), node(1)), (32.0, expected));
    // Every message is sent and received, and so are those in which ranks agree.
    let costs = MessageCosts { send: 0.25, send_byte: 0.125, receive: 0.5, receive_byte: 0.0 };
    let handled = 2.0 * (0.25 + 1.0 + 0.5) + 3.0 * 0.75;
    assert_eq!(seconds(Cluster::new(2).messages(costs)), 32.0 + handled);
}

#[test]
fn memory_decides_about_recomputation_and_ranks() {
    let profile = profile(4, 0.0, 1.0, &[1, 2, 4, 8]);
    let tune = |ranks, bytes: u64| {
        let cluster = Cluster::new(ranks).memory(vec![bytes; ranks]);
        let tuner = Tuner::new(&profile, &cluster).micro_batches([4]);
        tuner.schedules(vec![Box::new(GPipe::default())]).tune()
    };
    // Everything on one rank: 1200 of parameters and states, and the gradients with the activations
    // of three micro-batches: those of the fourth have gone when they come, except its input.
    let all = 1200 + 400 + 3 * 82 + 2;
    let roomy = tune(1, all).expect("fits");
    let policy = |report: &Report| report.best().configuration.policy.name().to_owned();
    assert_eq!(policy(&roomy), "never");
    // One byte less: recompute. One micro-batch rebuilt, both inputs kept.
    let tight = tune(1, all - 1).expect("fits");
    assert_ne!(policy(&tight), "never");
    assert!(tight.best().memory.as_ref().is_some_and(|bytes| bytes[0] < all));
    assert!(
        tight
            .rejected
            .iter()
            .any(|r| { r.configuration.policy.name() == "never" && r.missing == Some(1) })
    );

    // Parameters alone are too much, whatever is recomputed; two ranks hold them.
    let error = tune(1, 1599).expect_err("1600 bytes of parameters, gradients and states");
    assert!(
        matches!(&error, TuneError::NothingFits { rejected, .. } if rejected[0].missing.is_some())
    );
    assert!(
        error.to_string().contains("rank 0 needs") && error.to_string().contains("lacks"),
        "{error}"
    );
    // What is said to help does.
    let TuneError::NothingFits { more: Some(more), ranks: Some(ranks), .. } = error else {
        panic!("nothing helps: {error}");
    };
    assert_eq!(ranks, 2);
    assert!(tune(2, 1599).is_ok());
    assert!(tune(1, 1599 + more).is_ok() && tune(1, 1599 + more - 1).is_err());
    // One rank for each layer isn't enough for 399 bytes.
    let error = tune(1, 399).expect_err("a layer needs 400 bytes").to_string();
    assert!(error.contains("more bytes on every rank") && !error.contains("ranks like"), "{error}");
}

#[test]
fn stages_of_one_rank_need_not_hold_most_at_once() {
    let profile = profile(4, 0.0, 1.0, &[1, 100, 400]);
    let tune = |cluster: &Cluster| {
        Tuner::new(&profile, cluster)
            .schedules(vec![Box::new(Interleaved1F1B)])
            .policies(vec![Box::new(Never)])
            .ranks([2])
            .stages_per_rank([2])
            .micro_batches([4])
            .tune()
    };
    let report = tune(&Cluster::new(2)).expect("everything fits");
    let most = report.best().most_memory().expect("known");
    assert!(tune(&Cluster::new(2).memory(vec![most; 2])).is_ok());
    assert!(tune(&Cluster::new(2).memory(vec![most - 1; 2])).is_err());
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let profile = profile(2, 0.0, 1.0, &[4, 8]);
    let refused = |tuner: Tuner<'_>| match tuner.tune() {
        Err(TuneError::Request { what, reason }) => format!("{what}: {reason}"),
        other => panic!("{other:?}"),
    };
    let cluster = Cluster::new(2);
    assert!(refused(Tuner::new(&profile, &cluster).batch(0)).starts_with("batch"));
    // Sizes below 4 weren't measured.
    let error = refused(Tuner::new(&profile, &cluster).batch(3));
    assert_eq!(
        error,
        "micro-batches: no number of them cuts 3 samples into sizes within the measured [4, 8]: measure more sizes"
    );
    for (cluster, what) in [
        (Cluster::new(0), "ranks"),
        (Cluster::new(usize::MAX), "ranks"),
        (Cluster::new(2).memory([1, 2, 3]), "memory"),
        (Cluster::new(2).speeds([1.0, 1.0, 1.0]), "speeds"),
        (Cluster::new(2).nodes(0, 0.0, 1.0), "nodes"),
        (Cluster::new(2).nodes(1, -1.0, 1.0), "latency between nodes"),
        (Cluster::new(2).nodes(1, 0.0, f64::NAN), "bandwidth between nodes"),
        (
            Cluster::new(2).messages(MessageCosts { send: -1.0, ..MessageCosts::default() }),
            "messages",
        ),
        (Cluster::new(2).speeds([1.0, 0.0]), "speeds"),
        (Cluster::new(2).link(f64::NAN, 1.0), "latency"),
        (Cluster::new(2).link(0.0, 0.0), "bandwidth"),
    ] {
        assert!(refused(Tuner::new(&profile, &cluster)).starts_with(what), "{what}");
    }
}

#[test]
fn a_limit_needs_known_bytes() {
    let text = profile(1, 0.0, 1.0, &[1]).to_json().expect("writes");
    let (before, known) = text.split_once("\"memory\": ").expect("written");
    let after = known.split_once('}').expect("closed").1;
    let unknown = format!("{before}\"memory\": null{after}");
    let profile = Profile::from_json(&unknown).expect("reads");
    assert!(profile.bytes(1).is_err() && profile.activations(1).is_err());
    assert!(
        Tuner::new(&profile, &Cluster::new(1)).tune().expect("no limit").best().memory.is_none()
    );
    let limited = Cluster::new(1).memory([1 << 40]);
    let error = Tuner::new(&profile, &limited).tune().expect_err("unknown").to_string();
    assert!(error.starts_with("memory: the profile doesn't say"), "{error}");
}

#[test]
fn any_cut_can_be_priced() {
    let profile = profile(4, 0.0, 1.0, &[1, 8]);
    let cluster = Cluster::new(2);
    let tuner = Tuner::new(&profile, &cluster);
    let configuration = Configuration::new(GPipe::default(), Never, Shape::new(2, 8));
    let predict = |sizes: &[usize]| {
        tuner.predict(&configuration, &Partition::from_sizes(sizes).expect("a partition"))
    };
    // Forward and backward of 1 second for each layer and micro-batch: 8 + 1 turns of the longer
    // stage.
    assert_eq!(predict(&[2, 2]).expect("predicts").seconds, 2.0 * 9.0 * 2.0);
    assert_eq!(predict(&[3, 1]).expect("predicts").seconds, 2.0 * (8.0 * 3.0 + 1.0));
    let refused = |sizes: &[usize]| predict(sizes).expect_err("refused").to_string();
    assert!(refused(&[2, 3]).contains("it cuts 5 layers, the profile has 4"));
    assert!(refused(&[4]).contains("stages"));
    let wide = Configuration::new(GPipe::default(), Never, Shape::new(3, 8));
    let cut = Partition::from_sizes([1, 1, 2]).expect("a partition");
    assert!(tuner.predict(&wide, &cut).expect_err("refused").to_string().contains("needs 3 ranks"));
}

#[test]
fn layers_can_be_cut_by_measured_times_or_bytes() {
    let profile = profile(3, 1.0, 0.5, &[2, 4]);
    // Between two sizes on the straight line: forward and backward of 1 + 0.5 * 3 each.
    assert_eq!(profile.times(3).expect("measured").as_slice(), [5.0; 3]);
    assert_eq!(profile.bytes(4).expect("known").as_slice(), [440.0; 3]);
    let activations = profile.activations(4).expect("known");
    let memory = LayerMemory {
        activations: 40,
        input: 4,
        output: 4,
        gradients: 100,
        ..LayerMemory::default()
    };
    let expected = LayerActivations { memory, recompute: 3.0 };
    assert_eq!(activations, [expected; 3]);
    let error = profile.times(5).expect_err("not measured").to_string();
    assert!(error.contains("5 is outside the measured sizes [2, 4]"), "{error}");
}

#[test]
fn of_what_cannot_be_told_apart_the_simplest_is_chosen() {
    // No fixed cost: GPipe and 1F1B are equally fast, and 1F1B keeps less.
    let profile = profile(8, 0.0, 1.0, &[1, 16]);
    let cluster = Cluster::new(4);
    let report = Tuner::new(&profile, &cluster).ranks([4]).micro_batches([16]).stages_per_rank([1]);
    let report = report.policies(vec![Box::new(Never)]).tune().expect("everything fits");
    assert_eq!(report.best().configuration.schedule.name(), "1f1b");
    assert_eq!(report.best().kept_samples, 4.0);
    assert!(report.choices.iter().any(|choice| choice.seconds == report.best().seconds
        && choice.configuration.schedule.name() == "gpipe"
        && choice.kept_samples == 16.0));
}

#[test]
fn policies_that_look_at_layers_can_be_tuned_with() {
    let profile = profile(9, 0.0, 1.0, &[1, 2, 4, 8]);
    let tune = |policy: Box<dyn CheckpointPolicy>, bytes: u64| {
        let cluster = Cluster::new(2).memory(vec![bytes; 2]);
        let tuner = Tuner::new(&profile, &cluster).ranks([2]).micro_batches([4]);
        tuner.schedules(vec![Box::new(OneFOneB)]).policies(vec![policy]).tune()
    };
    // Parameters and their like of five layers, and some activations.
    let fixed = 5 * 400;
    let activations = profile.activations(2).expect("known");
    let budget = tune(Box::new(Budget::new(120, activations)), fixed + 120).expect("fits");
    assert!(budget.best().most_memory() <= Some(fixed + 120));
    assert!(tune(Box::new(Selective::new([7])), 10_000).is_ok());
    // Segments need less than whole stages rebuilt at once.
    let least = |policy: fn() -> Box<dyn CheckpointPolicy>| {
        let fits = |bytes: &u64| tune(policy(), *bytes).is_ok();
        (fixed..fixed + 200).find(fits).expect("a limit that is enough")
    };
    // Five layers with an input and a value that arrives, for a moment without all gradients.
    let whole = least(|| Box::new(Always));
    let segments = least(|| Box::new(SqrtLayers));
    assert!(segments + 20 < whole, "{segments} {whole}");
}
