//! The search: what it looks at, its prices, and its choice against looking at everything.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use stovepipe_checkpoint::{Always, CheckpointPolicy, ExceptLast, Never, Selective};
use stovepipe_partition::Partition;
use stovepipe_schedule::{
    DualPipeV, ForwardOnly, GPipe, Interleaved1F1B, OneFOneB, Schedule, Shape, ZbH1,
};
use stovepipe_tune::{
    Choice, Cluster, Configuration, MessageCosts, Profile, Report, SkipProfile, TuneError, Tuner,
};

use crate::model::{profile, timed};

/// The seconds of a cut that is given.
fn seconds(
    profile: &Profile,
    cluster: &Cluster,
    configuration: &Configuration,
    sizes: &[usize],
) -> f64 {
    let partition = Partition::from_sizes(sizes).expect("a partition");
    let tuner = Tuner::new(profile, cluster);
    tuner.predict(configuration, &partition).expect("predicts").seconds
}

#[test]
fn recomputation_costs_what_is_dropped_where_it_runs() {
    // Forward, backward and recomputation of 8 seconds for each of four layers: one is dropped.
    let profile = profile(4, 0.0, 1.0, &[8]);
    let one = Configuration::new(GPipe::default(), Selective::new([0]), Shape::new(1, 1));
    assert_eq!(seconds(&profile, &Cluster::new(1), &one, &[4]), 64.0 + 8.0);
    // Two segments: the last is rebuilt while the gradient is on its way, the other in the
    // backward.
    let two = Configuration::new(GPipe::default(), Selective::new([0, 2]), Shape::new(2, 1));
    let alone = seconds(&profile, &Cluster::new(2), &two, &[3, 1]);
    assert_eq!(alone, 64.0 + 8.0);
}

#[test]
fn each_stage_weighs_its_own_recomputation() {
    // 1F1B's last stage recomputes nothing, so it gets more layers.
    let profile = timed(1, &[[1.0, 2.0, 1.0, 0.0]; 8]);
    let cluster = Cluster::new(2);
    let tuner = Tuner::new(&profile, &cluster).batch(64).ranks([2]);
    let tuner = tuner.schedules(vec![Box::new(OneFOneB)]).policies(vec![Box::new(ExceptLast)]);
    let report = tuner.tune().expect("everything fits");
    assert_eq!(report.best().partition.sizes(), [3, 5]);
    assert_eq!(report.best().seconds, 969.0);
    let configuration = Configuration::new(OneFOneB, ExceptLast, Shape::new(2, 64));
    let even = tuner.predict(&configuration, &Partition::from_sizes([4, 4]).expect("a cut"));
    assert_eq!(even.expect("predicts").seconds, 1028.0);
}

#[test]
fn updates_and_messages_weigh_in_the_cut() {
    // The last layer takes long to update: with few micro-batches it counts.
    let mut layers = [[1.0, 1.0, 1.0, 0.0]; 6];
    layers[5][3] = 8.0;
    let profile = timed(1, &layers);
    let tune = |cluster: &Cluster, batch| {
        let tuner = Tuner::new(&profile, cluster).batch(batch).ranks([2]).micro_batches([batch]);
        let tuner = tuner.schedules(vec![Box::new(OneFOneB)]).policies(vec![Box::new(Never)]);
        tuner.tune().expect("everything fits").best().partition.sizes()
    };
    assert_eq!(tune(&Cluster::new(2), 1000), [3, 3]);
    let report_of = |sizes: [usize; 2]| {
        let configuration = Configuration::new(OneFOneB, Never, Shape::new(2, 2));
        let partition = Partition::from_sizes(sizes).expect("a cut");
        let cluster = Cluster::new(2);
        let tuner = Tuner::new(&profile, &cluster).batch(2);
        tuner.predict(&configuration, &partition).expect("predicts").seconds
    };
    let sizes = tune(&Cluster::new(2), 2);
    let best = (1..6).map(|first| report_of([first, 6 - first])).fold(f64::INFINITY, f64::min);
    assert_eq!(report_of([sizes[0], sizes[1]]), best);
}

#[test]
fn divisors_and_multiples_are_tried_with_several_stages() {
    let profile = profile(12, 0.0, 1.0, &[1, 96]);
    for ranks in [3, 6] {
        let cluster = Cluster::new(ranks);
        let tuner = Tuner::new(&profile, &cluster).batch(96).ranks([ranks]).exhaustive(true);
        let report = tuner.policies(vec![Box::new(Never)]).tune().expect("everything fits");
        let tried = |schedule: &str, stages: usize, micro_batches: usize| {
            let is = |c: &Configuration| {
                c.schedule.name() == schedule
                    && (c.stages_per_rank, c.micro_batches) == (stages, micro_batches)
            };
            report.choices.iter().any(|choice| is(&choice.configuration))
        };
        for micro_batches in [3, 6, 12, 24, 32, 48, 96] {
            assert!(tried("1f1b", 1, micro_batches), "{ranks} ranks, {micro_batches}");
        }
        for stages in 2..=12 / ranks.max(3) {
            assert!(tried("interleaved-1f1b", stages, 48), "{ranks} ranks, {stages} stages");
        }
        // What can't be planned wasn't asked for.
        assert!(report.rejected.is_empty(), "{:?}", report.rejected.first());
    }
}

#[test]
fn schedules_that_a_profile_cannot_price_are_refused_with_the_reason() {
    let profile = profile(8, 0.0, 1.0, &[1, 8]);
    let cluster = Cluster::new(2);
    let tune = |schedules: Vec<Box<dyn Schedule>>| {
        Tuner::new(&profile, &cluster).schedules(schedules).tune()
    };
    for (schedule, reason) in [
        (Box::new(ZbH1) as Box<dyn Schedule>, "splits backwards"),
        (Box::new(ForwardOnly), "only runs forwards"),
        (Box::new(DualPipeV), "splits backwards"),
    ] {
        let error = tune(vec![schedule]).expect_err("nothing can be priced").to_string();
        assert!(error.contains(reason), "{error}");
    }
    let report = tune(vec![Box::new(ZbH1), Box::new(OneFOneB)]).expect("one can");
    assert!(report.rejected.iter().all(|r| r.configuration.schedule.name() == "zb-h1"));
    assert!(!report.rejected.is_empty());
}

#[test]
fn skips_take_their_links_time() {
    let layers = profile(4, 0.0, 1.0, &[1, 4]);
    let skip = |bytes: Vec<u64>| SkipProfile { from: 0, to: 3, bytes };
    let skipping = layers.clone().with_skips([skip(vec![100, 400])]).expect("a skip");
    let read = Profile::from_json(&skipping.to_json().expect("writes")).expect("reads");
    assert_eq!((&read, read.skips()), (&skipping, &[skip(vec![100, 400])][..]));
    let cluster = Cluster::new(4).link(0.0, 1.0);
    let configuration = Configuration::new(GPipe::default(), Never, Shape::new(4, 2));
    let with =
        |profile: &Profile, sizes: &[usize]| seconds(profile, &cluster, &configuration, sizes);
    // Two samples in each micro-batch: 200 bytes from the first stage to the last, twice.
    assert!(with(&skipping, &[1, 1, 1, 1]) > with(&layers, &[1, 1, 1, 1]) + 300.0);
    for (wrong, why) in [
        (SkipProfile { from: 3, to: 3, bytes: vec![1, 1] }, "from layer 3 to 3"),
        (SkipProfile { from: 0, to: 4, bytes: vec![1, 1] }, "among 4 layers"),
        (skip(vec![1]), "has 1 sizes, layers have 2"),
    ] {
        let error = layers.clone().with_skips([wrong]).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn the_answer_is_the_same_for_any_number_of_threads_and_progress_is_told() {
    let profile = profile(16, 0.25, 0.5, &[1, 64]);
    let cluster = Cluster::new(8).memory([60_000]).nodes(4, 0.01, 1e3).link(0.001, 1e4);
    let report = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let told = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&told);
        let tuner = Tuner::new(&profile, &cluster).batch(64).progress(move |settled, all| {
            notes.lock().expect("not poisoned").push((settled, all));
        });
        let report = pool.install(|| tuner.tune()).expect("something fits");
        let told = told.lock().expect("not poisoned");
        assert!(told.is_sorted() && told.last().is_some_and(|(settled, all)| settled == all));
        serde_json::to_string(&report).expect("writes")
    };
    let one = report(1);
    assert_eq!(one, report(2));
    assert_eq!(one, report(5));
}

#[test]
fn what_cannot_be_the_fastest_is_told_and_not_simulated() {
    let profile = profile(8, 0.0, 1.0, &[1, 32]);
    let cluster = Cluster::new(8);
    let all = Tuner::new(&profile, &cluster).exhaustive(true).tune().expect("everything fits");
    let report = Tuner::new(&profile, &cluster).tune().expect("everything fits");
    assert!(all.bounded.is_empty() && report.choices.len() < all.choices.len() / 4);
    let settled = report.choices.len() + report.rejected.len() + report.bounded.len();
    assert_eq!(settled, all.choices.len() + all.rejected.len());
    assert_eq!(report.best().configuration.to_string(), all.best().configuration.to_string());
    // Every schedule is shown, and no bound is above what it bounds.
    for choice in &all.choices {
        let name = choice.configuration.to_string();
        let bounded = report.bounded.iter().find(|b| b.configuration.to_string() == name);
        assert!(bounded.is_none_or(|b| b.at_least <= choice.seconds * (1.0 + 1e-9)), "{name}");
        let schedule = choice.configuration.schedule.name();
        assert!(report.choices.iter().any(|c| c.configuration.schedule.name() == schedule));
    }
}

/// All ways to cut layers into parts.
fn cuts(layers: usize, parts: usize) -> Vec<Vec<usize>> {
    if parts == 1 {
        return vec![vec![layers]];
    }
    let first = 1..=layers + 1 - parts;
    let with = |first: usize| {
        cuts(layers - first, parts - 1).into_iter().map(move |rest| [vec![first], rest].concat())
    };
    first.flat_map(with).collect()
}

/// The fastest of all configurations and cuts that fit.
fn exhaustively(
    profile: &Profile,
    cluster: &Cluster,
    batch: usize,
    memory: Option<u64>,
) -> Option<Choice> {
    let schedules: [fn() -> Box<dyn Schedule>; 3] =
        [|| Box::new(GPipe::default()), || Box::new(OneFOneB), || Box::new(Interleaved1F1B)];
    let policies: [fn() -> Box<dyn CheckpointPolicy>; 3] =
        [|| Box::new(Never), || Box::new(ExceptLast), || Box::new(Always)];
    let (layers, tuner) = (profile.layers().len(), Tuner::new(profile, cluster).batch(batch));
    let mut best: Option<Choice> = None;
    for schedule in schedules {
        let several = schedule().default_stages_per_rank() > 1;
        for (ranks, stages) in
            (1..=3).flat_map(|r| if several { vec![(r, 2), (r, 3)] } else { vec![(r, 1)] })
        {
            if ranks * stages > layers {
                continue;
            }
            for micro_batches in (1..=batch).filter(|m| batch.is_multiple_of(*m)) {
                let shape = Shape::new(ranks, micro_batches).with_stages_per_rank(stages);
                for policy in policies {
                    let configuration = Configuration::new(schedule(), policy(), shape);
                    for sizes in cuts(layers, ranks * stages) {
                        let partition = Partition::from_sizes(sizes).expect("a partition");
                        let Ok(choice) = tuner.predict(&configuration, &partition) else {
                            continue;
                        };
                        let fits = memory.is_none_or(|has| choice.most_memory() <= Some(has));
                        let limit = best.as_ref().map_or(f64::INFINITY, |best| best.seconds);
                        if fits && choice.seconds < limit {
                            best = Some(choice);
                        }
                    }
                }
            }
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_choice_is_as_good_as_any(
        times in prop::collection::vec((0.2f64..3.0, 0.2f64..4.0, 0.0f64..2.0), 4..7),
        fixed in 0.0f64..1.0,
        tight in 0usize..3,
        latency in 0.0f64..0.2,
        handling in 0.0f64..0.1,
    ) {
        let batch = 8;
        let base = profile(times.len(), 0.0, 1.0, &[1, batch]);
        let mut layers = base.layers().to_vec();
        for (layer, (forward, backward, update)) in layers.iter_mut().zip(&times) {
            layer.update = stovepipe_tune::Time::exactly(*update);
            for m in &mut layer.measurements {
                let time = |each: f64| {
                    stovepipe_tune::Time::exactly(fixed + each * m.samples as f64)
                };
                (m.forward, m.recompute, m.backward) =
                    (time(*forward), time(*forward), time(*backward));
            }
        }
        let profile = Profile::new("made up", layers).expect("valid");
        let memory = [None, Some(1600), Some(1000)][tight];
        let costs = MessageCosts { send: handling, receive: handling, ..MessageCosts::default() };
        let mut cluster = Cluster::new(3).link(latency, 100.0).messages(costs);
        if let Some(bytes) = memory {
            cluster = cluster.memory([bytes]);
        }
        let found = Tuner::new(&profile, &cluster)
            .schedules(vec![
                Box::new(GPipe::default()), Box::new(OneFOneB), Box::new(Interleaved1F1B),
            ])
            .stages_per_rank([1, 2, 3])
            .tune();
        let best = exhaustively(&profile, &cluster, batch, memory);
        match (found, best) {
            (Ok(report), Some(best)) => {
                let limit = (1.0 + Report::TOLERANCE) * best.seconds + 1e-9;
                let chosen = report.best();
                prop_assert!(
                    chosen.seconds <= limit,
                    "{} {:?}, best {} {:?}", chosen.seconds, chosen, best.seconds, best
                );
            }
            (Err(TuneError::NothingFits { .. }), None) => {}
            (found, best) => prop_assert!(false, "{found:?} against {best:?}"),
        }
    }
}
