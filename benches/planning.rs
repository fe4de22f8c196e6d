//! How long planning takes: making, checking, lowering and simulating plans, and cutting layers.
//! Run it with `cargo bench --bench planning`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stovepipe_partition::{Costs, Minimax, Partitioner};
use stovepipe_schedule::{
    CostModel, Edges, OneFOneB, Program, Retention, Schedule, Shape, simulate,
};

/// Ranks and micro-batches: twice as many actions in each of the first three, eight times in the
/// next two, up to over two million; and a wide one.
const SHAPES: [(usize, usize); 6] =
    [(16, 256), (16, 512), (32, 512), (64, 2048), (256, 4096), (4096, 4)];

fn plans(criterion: &mut Criterion) {
    for (ranks, micro_batches) in SHAPES {
        let mut group = criterion.benchmark_group(format!("1f1b {ranks}x{micro_batches}"));
        group.throughput(Throughput::Elements(2 * (ranks * micro_batches) as u64)).sample_size(10);
        let shape = Shape::new(ranks, micro_batches);
        group.bench_function("plan", |b| b.iter(|| OneFOneB.plan(black_box(shape))));
        let plan = OneFOneB.plan(shape).expect("1F1B plans every shape");
        let (edges, retention) = (Edges::chain(ranks), Retention::keep_all(&plan));
        group.bench_function("lower", |b| b.iter(|| Program::lower(&plan, &edges, &retention)));
        let program = Program::lower(&plan, &edges, &retention).expect("the sizes match");
        let costs = CostModel::uniform(ranks, 1.0, 2.0);
        group.bench_function("simulate", |b| b.iter(|| simulate(&program, black_box(&costs))));
        group.finish();
    }
}

fn partitions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("minimax");
    group.sample_size(20);
    for (layers, parts) in [(100, 8), (1000, 64), (10_000, 1000)] {
        // Costs between 1 and 2 without a pattern.
        let costs: Vec<f64> = (0..layers).map(|i| 1.0 + (i as f64 * 0.618_034).fract()).collect();
        let costs = Costs::new(costs).expect("finite costs");
        let name = format!("{layers} layers into {parts}");
        group.bench_function(name, |b| b.iter(|| Minimax.partition(black_box(&costs), parts)));
    }
    group.finish();
}

criterion_group!(benches, plans, partitions);
criterion_main!(benches);
