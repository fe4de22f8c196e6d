//! Side inputs say whether they are per sample or the same for all: nothing is cut that isn't
//! meant to be, however many micro-batches and processes there are.

use std::sync::atomic::Ordering;
use std::thread;

use stovepipe::burn::tensor::{Device, Int, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::Always;
use stovepipe::transport::InProcess;
use stovepipe::{Builder, MemoryCounter, Packet, Profiling, Rehearsal};
use stovepipe_testkit::{
    CountingFlex, DIM, LinearLayers, SEQ, Tokens, batch, classifier, embed, on_one_stage,
    parameter_bits, same_on_any_cut,
};

/// As many numbers as there are samples: by its shape alone it could be meant either way.
const SAMPLES: usize = 4;

/// Adds a table to every sample's logits, and a bias of its own to each.
fn builder() -> Builder<Tokens, Tensor<3>, Tokens> {
    let model = embed()
        .push_fn_with_context("bias", |x: Tensor<3>, context| {
            let bias: Tensor<1> = context.side_input("bias");
            let [samples] = bias.dims();
            x + bias.reshape([samples, 1, 1])
        })
        .linear("up", DIM, DIM)
        .push_fn_with_context("table", |x: Tensor<3>, context| {
            let (table, _): (Tensor<1>, Tensor<1, Int>) = context.side_constant("table");
            assert_eq!(table.dims(), [SAMPLES]);
            let [samples, length, _] = x.dims();
            let sum = table.sum().reshape([1, 1, 1]).expand([samples, length, DIM]);
            x + sum
        })
        .head();
    classifier(model)
}

fn numbers() -> Tensor<1> {
    Tensor::<1, Int>::arange(0..SAMPLES as i64, &Device::flex()).float() * 0.1
}

fn table() -> (Tensor<1>, Tensor<1, Int>) {
    (numbers(), Tensor::arange(0..2, &Device::flex()))
}

#[test]
fn constants_are_whole_for_every_micro_batch() {
    same_on_any_cut(builder, |mut pipeline| {
        for step in 0..2 {
            let (x, y) = batch(SAMPLES, step);
            pipeline.side_input("bias", numbers()).side_constant("table", table());
            pipeline.step(x, y).expect("a step");
        }
        let (x, y) = batch(SAMPLES, 0);
        pipeline.side_input("bias", numbers()).side_constant("table", table());
        (pipeline.evaluate(x, y).expect("evaluates").loss, parameter_bits(&mut pipeline))
    });
    // As if it were a part of the layer.
    let predict = |micro_batches: usize| {
        let builder = builder().backend(Flex::new()).micro_batches(micro_batches);
        let mut pipeline = builder.build().expect("a pipeline");
        pipeline.side_input("bias", numbers()).side_constant("table", table());
        let output = pipeline.predict(batch(SAMPLES, 0).0).expect("predicts");
        output.into_data().iter::<f64>().collect::<Vec<_>>()
    };
    let expected = predict(1);
    for micro_batches in 2..=SAMPLES {
        let found = predict(micro_batches);
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}");
    }
}

#[test]
fn both_sides_say_of_which_kind_a_side_input_is() {
    let mut pipeline = on_one_stage(builder());
    let (x, y) = batch(SAMPLES, 0);
    pipeline.side_input("bias", numbers()).side_input("table", (numbers(), numbers().int()));
    let error = pipeline.step(x.clone(), y.clone()).expect_err("refused");
    assert_eq!(error.layer(), Some("table"));
    let error = error.to_string();
    let expected = "asks for `table` with `side_constant`, but it was given with `side_input`";
    assert!(error.contains(expected), "{error}");
    pipeline.side_constant("bias", numbers()).side_constant("table", table());
    let error = pipeline.predict(x.clone()).expect_err("refused").to_string();
    let expected = "asks for `bias` with `side_input`, but it was given with `side_constant`";
    assert!(error.contains(expected), "{error}");
    pipeline.side_input("bias", numbers());
    let error = pipeline.predict(x.clone()).expect_err("refused").to_string();
    assert!(error.contains("call `.side_constant(\"table\", …)` on the pipeline"), "{error}");
    // The first axis of what is per sample is the batch axis.
    pipeline.side_input("bias", Tensor::<1>::zeros([3], &Device::flex()));
    let error = pipeline.step(x, y).expect_err("refused").to_string();
    assert!(error.contains("has 3 samples, the input 4"), "{error}");
    assert!(error.contains(".side_constant(\"bias\", …)"), "{error}");
}

/// Knows of no byte.
struct NoMemory;

impl MemoryCounter for NoMemory {
    fn live_bytes(&self) -> u64 {
        0
    }

    fn peak_bytes(&self) -> Option<u64> {
        Some(0)
    }
}

#[test]
fn measurements_and_rehearsals_take_both_kinds() {
    let (x, y) = batch(SAMPLES, 0);
    let profiling = Profiling::new([1, 2, SAMPLES]).runs(1).warm_up(0);
    let whole = profiling.clone().side_constant("table", table()).side_input("bias", numbers());
    let builder = || builder().backend(Flex::new()).stages(2).micro_batches(2).checkpoint(Always);
    let profile = builder().profile(&whole, x.clone(), y.clone()).expect("a profile");
    assert_eq!(profile.layers().len(), 5);
    let short = Tensor::<1>::zeros([3], &Device::flex());
    let long = Tensor::<1>::zeros([SAMPLES + 1], &Device::flex());
    for wrong in [short, long] {
        let wrong = whole.clone().side_input("bias", wrong);
        let error = builder().profile(&wrong, x.clone(), y.clone()).expect_err("refused");
        assert!(error.to_string().contains("`bias`: it has"), "{error}");
    }
    let other = Tokens::zeros([SAMPLES + 1, SEQ], &Device::flex());
    let error = builder().profile(&whole, x.clone(), other).expect_err("refused").to_string();
    assert!(error.contains("the target can't be cut into samples: it has 5"), "{error}");
    for rank in 0..2 {
        let rehearsal = Rehearsal::new(rank, NoMemory).side_input("bias", numbers());
        let rehearsed = rehearsal.clone().side_constant("table", table());
        let peaks = builder().rehearse(&rehearsed, x.clone(), y.clone()).expect("peaks");
        assert_eq!(peaks, [0, 0]);
        let wrong = rehearsal.side_input("table", (numbers(), numbers().int()));
        let error = builder().rehearse(&wrong, x.clone(), y.clone()).expect_err("refused");
        assert_eq!(error.layer(), Some("table"));
    }
}

/// Predicts on two ranks that are built apart, and are given the table in these ways.
fn on_two_ranks(constant: [bool; 2]) -> Vec<Result<Vec<u8>, String>> {
    let ranks = InProcess::<Packet>::group(2).into_iter().zip(constant).map(|(end, constant)| {
        thread::spawn(move || {
            let builder = builder().backend(Flex::new()).stages(2).micro_batches(2);
            let mut pipeline = builder.transport(end).build().expect("a pipeline");
            pipeline.side_input("bias", numbers());
            let table = (numbers(), numbers().int());
            if constant {
                pipeline.side_constant("table", table);
            } else {
                pipeline.side_input("table", table);
            }
            let output = pipeline.predict(batch(SAMPLES, 0).0);
            output.map(|x| x.into_data().as_bytes().to_vec()).map_err(|error| error.to_string())
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}

#[test]
fn processes_agree_on_the_kind_of_side_inputs() {
    let builder = builder().backend(Flex::new()).micro_batches(2);
    let mut alone = builder.build().expect("a pipeline");
    alone.side_input("bias", numbers()).side_constant("table", table());
    let expected = alone.predict(batch(SAMPLES, 0).0).expect("predicts").into_data();
    for found in on_two_ranks([true, true]) {
        assert!(found.expect("predicts") == expected.as_bytes());
    }
    for found in on_two_ranks([true, false]) {
        let error = found.expect_err("refused");
        assert!(error.contains("differs from the others in the batch"), "{error}");
    }
}

#[test]
fn constants_move_to_a_device_once() {
    let (backend, moves) =
        CountingFlex::new(|packet| format!("{packet:?}").contains("Tensor<1, Int> [2]"));
    let builder = builder().backend(backend).micro_batches(SAMPLES);
    let mut pipeline = builder.checkpoint(Always).build().expect("a pipeline");
    for step in 0..2 {
        let (x, y) = batch(SAMPLES, step);
        pipeline.side_input("bias", numbers()).side_constant("table", table());
        pipeline.step(x, y).expect("a step");
        assert_eq!(moves.swap(0, Ordering::Relaxed), 1);
    }
}
