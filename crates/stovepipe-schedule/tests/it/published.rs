//! Bubble rates and times that others have published.

use stovepipe_schedule::{
    CostModel, Edges, GPipe, Interleaved1F1B, Link, OneFOneB, Program, Retention, Schedule, Shape,
    StageCost, Timeline, ZbH1, simulate,
};

/// Qi et al., arXiv 2401.10241: measured times (table 9, in milliseconds), and the bubble rates of
/// their simulation (table 5).
struct Row {
    ranks: usize,
    micro_batches: usize,
    /// Forward, input gradient, weight gradient and a message, each of a whole rank.
    times: [f64; 4],
    one_f_one_b: f64,
    /// Stages on each rank (the layers of table 3, with embedding and head, over the ranks), and
    /// the rate.
    interleaved: (usize, f64),
    /// ZB-1p there: automatic scheduling within the memory of 1F1B finds what ZB-H1 writes.
    zb_h1: f64,
}

const TABLE: [Row; 5] = [
    Row {
        ranks: 8,
        micro_batches: 24,
        times: [18.522, 18.086, 9.337, 0.601],
        one_f_one_b: 0.2431,
        interleaved: (3, 0.1055),
        zb_h1: 0.1585,
    },
    Row {
        ranks: 8,
        micro_batches: 24,
        times: [29.718, 29.444, 19.927, 0.527],
        one_f_one_b: 0.2347,
        interleaved: (4, 0.0808),
        zb_h1: 0.1323,
    },
    Row {
        ranks: 16,
        micro_batches: 48,
        times: [11.347, 11.248, 8.132, 0.377],
        one_f_one_b: 0.2552,
        interleaved: (3, 0.1104),
        zb_h1: 0.1397,
    },
    Row {
        ranks: 32,
        micro_batches: 96,
        times: [10.419, 10.207, 7.715, 0.408],
        one_f_one_b: 0.2646,
        interleaved: (2, 0.1493),
        zb_h1: 0.1421,
    },
    Row {
        ranks: 32,
        micro_batches: 256,
        times: [10.402, 10.248, 7.698, 0.460],
        one_f_one_b: 0.1352,
        interleaved: (2, 0.0624),
        zb_h1: 0.0594,
    },
];

fn run(schedule: &dyn Schedule, shape: Shape, costs: &CostModel) -> Timeline {
    let plan = schedule.plan(shape).expect("a plan");
    let edges = Edges::chain(plan.stages());
    let program = Program::lower(&plan, &edges, &Retention::keep_all(&plan)).expect("lowers");
    simulate(&program, costs).expect("simulates")
}

impl Row {
    /// Without the update, messages as latency. `saved` is taken off the makespan.
    fn rate(&self, schedule: &dyn Schedule, stages_per_rank: usize, saved: f64) -> f64 {
        let [forward, input, weight, message] = self.times;
        let share = |time: f64| time / stages_per_rank as f64;
        let cost = StageCost {
            weight_grad: share(weight),
            ..StageCost::new(share(forward), share(input + weight))
        };
        let shape = Shape::new(self.ranks, self.micro_batches);
        let costs = CostModel::new(vec![cost; self.ranks * stages_per_rank])
            .with_link(Link { latency: message, transfer: 0.0 });
        let timeline = run(schedule, shape.with_stages_per_rank(stages_per_rank), &costs);
        let useful = self.micro_batches as f64 * (forward + input + weight);
        1.0 - useful / (timeline.makespan() - saved)
    }
}

#[test]
fn bubble_rates_are_those_of_the_zero_bubble_paper() {
    let near = |found: f64, expected: f64, what: &str| {
        assert!((found - expected).abs() < 2e-4, "{what}: {found:.4}, published {expected}");
    };
    for row in &TABLE {
        near(row.rate(&OneFOneB, 1, 0.0), row.one_f_one_b, "1F1B");
        near(row.rate(&ZbH1, 1, 0.0), row.zb_h1, "ZB-H1");
        // Their interleaved schedule hides one message for each rank more than Megatron-LM's does,
        // which is ours: apart from that the rates agree.
        let (stages, rate) = row.interleaved;
        let hidden = row.ranks as f64 * row.times[3];
        near(row.rate(&Interleaved1F1B, stages, hidden), rate, "interleaved 1F1B");
        assert!(row.rate(&Interleaved1F1B, stages, 0.0) - rate < 4e-3);
    }
}

#[test]
fn with_slow_links_gpipe_is_faster_than_1f1b() {
    // 16 MiB over 10 Gbit/s, in milliseconds: 1F1B waits for what GPipe has long received.
    let link = Link::of_bytes(0.05, f64::from(16 << 20), 10e9 / 8.0 / 1e3);
    let costs = CostModel::uniform(8, 20.0, 40.0).with_link(link);
    let shape = Shape::new(8, 32);
    let busy = 32.0 * 60.0;
    for (schedule, time, percent) in
        [(&OneFOneB as &dyn Schedule, 3256.0, 59.0), (&GPipe::default(), 2529.0, 75.9)]
    {
        let found = run(schedule, shape, &costs).makespan();
        assert!((found - time).abs() < 1.0, "{}: {found}", schedule.name());
        assert!((100.0 * busy / found - percent).abs() < 0.05, "{}: {found}", schedule.name());
    }
}
