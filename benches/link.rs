//! The same job between two network namespaces with addresses and host names of their own, next to
//! what the simulator predicts at the measured latency and bandwidth of the link between them. Last
//! comes a job whose boundaries take longer than a process may be silent, once until it ends and
//! once until a process is stopped. Needs root, for the namespaces. Starts itself in them with
//! `mpirun`; a link may be slowed down to a given rate.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::executor::block_on;
use stovepipe::burn::nn::{LayerNormConfig, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::activation::relu;
use stovepipe::burn::tensor::{Device, Distribution, Tensor};
use stovepipe::schedule::{CostModel, Link, OneFOneB, simulate};
use stovepipe::transport::{Direction, Tag, Transport};
use stovepipe::tune::Time;
use stovepipe::{Flex, LayerCosts, MeanSquaredError, Mpi, Pipeline, Sequential};
use stovepipe_benches::{act_of_rank, round_trips};
use stovepipe_testkit::jobs::AS_RANK;

/// Rates of the link; the first is as fast as the machine makes it.
const RATES: [Option<&str>; 3] = [None, Some("1gbit"), Some("200mbit")];
/// The two namespaces, which are also their host names, and their addresses.
const SIDES: [(&str, &str); 2] = [("stovepipe-a", "10.77.7.1"), ("stovepipe-b", "10.77.7.2")];

/// The rate at which a boundary of 512 MiB takes 21 seconds.
const SLOW: &str = "200mbit";
const LARGE: usize = 512 << 20;

const WIDTH: usize = 512;
const LAYERS: usize = 8;
const MICRO_BATCHES: usize = 8;
/// Samples of a micro-batch: a boundary has 1 MiB.
const SAMPLES: usize = 512;
const WARM_UP: usize = 2;
const STEPS: usize = 10;

fn main() -> Result<()> {
    match act_of_rank().as_deref() {
        Some("large") => large(false),
        Some("stopped") => large(true),
        Some(_) => rank(),
        None => drive(),
    }
}

fn drive() -> Result<()> {
    let done = RATES.into_iter().try_for_each(|rate| between_namespaces(rate, "train").map(drop));
    let done = done.and_then(|()| {
        between_namespaces(Some(SLOW), "large")?;
        let ended = between_namespaces(Some(SLOW), "stopped");
        ensure!(ended.is_err(), "the job lived on without one of its processes");
        Ok(())
    });
    remove();
    done
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program).args(arguments).status()?;
    ensure!(status.success(), "`{program} {}` failed: {status}", arguments.join(" "));
    Ok(())
}

fn ip(arguments: &str) -> Result<()> {
    run("ip", &arguments.split(' ').collect::<Vec<_>>())
}

/// Whatever is there of the namespaces.
fn remove() {
    for (name, _) in SIDES {
        // There may be none.
        let _ = Command::new("ip").args(["netns", "del", name]).output();
    }
}

/// Connects two namespaces, and runs the job with one rank in each.
fn between_namespaces(rate: Option<&str>, act: &str) -> Result<()> {
    remove();
    let [(a, _), (b, _)] = SIDES;
    for (name, _) in SIDES {
        ip(&format!("netns add {name}"))?;
        ip(&format!("-n {name} link set lo up"))?;
    }
    ip(&format!("link add pipe netns {a} type veth peer name pipe netns {b}"))?;
    for (name, address) in SIDES {
        ip(&format!("-n {name} addr add {address}/24 dev pipe"))?;
        ip(&format!("-n {name} link set pipe up"))?;
        if let Some(rate) = rate {
            let shaped = format!(
                "netns exec {name} tc qdisc add dev pipe root tbf rate {rate} burst 256kb latency 400ms"
            );
            ip(&shaped)?;
        }
    }
    println!("link: {}, {act}", rate.unwrap_or("not slowed down"));
    let folder = std::env::temp_dir().join(format!("stovepipe-link-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let start = Instant::now();
    let done = mpirun(&folder, act);
    println!("  took {:.0} s", start.elapsed().as_secs_f64());
    fs::remove_dir_all(&folder)?;
    done
}

/// Starts the job in the first namespace. What would be a remote shell enters the second one.
fn mpirun(folder: &Path, act: &str) -> Result<()> {
    let [(a, first), (b, second)] = SIDES;
    let agent = folder.join("enter");
    let script = format!(
        "#!/bin/sh\nshift\nexec ip netns exec {b} unshare --uts sh -c \"hostname {b}; $*\"\n"
    );
    fs::write(&agent, script)?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
    let myself = std::env::current_exe()?;
    let job = [
        "mpirun --allow-run-as-root -n 2 --map-by node",
        &format!("--host {first}:1,{second}:1"),
        &format!("--mca plm_rsh_agent {}", agent.display()),
        "--mca btl tcp,self --mca btl_tcp_if_include 10.77.7.0/24",
        "--mca oob_tcp_if_include 10.77.7.0/24",
        &format!("{} {AS_RANK} {act}", myself.display()),
    ];
    let enter = format!("hostname {a}; exec {}", job.join(" "));
    run("ip", &["netns", "exec", a, "unshare", "--uts", "sh", "-c", &enter])
}

fn rank() -> Result<()> {
    // Kept to the end: MPI ends with the last endpoint.
    let first = Mpi::world()?;
    let (latency, bandwidth) = measure_link(&first)?;
    let mpi = Mpi::world()?;
    let is_first = mpi.rank() == 0;
    let mut model = Sequential::<Tensor<2>>::new();
    for layer in 0..LAYERS {
        let init = |device: &Device| LinearConfig::new(WIDTH, WIDTH).init(device);
        model = model.push_module(layer.to_string(), init, |m, x| relu(m.forward(x)));
    }
    let mut pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .layer_costs(LayerCosts::Uniform)
        .stages(mpi.ranks())
        .micro_batches(MICRO_BATCHES)
        .schedule(OneFOneB)
        .optimizer(SgdConfig::new().init())
        .learning_rate(1e-3)
        .loss(MeanSquaredError)
        .transport(mpi)
        .build()?;
    let samples = MICRO_BATCHES * SAMPLES;
    let device = Device::flex();
    device.seed(1);
    let random = || Tensor::<2>::random([samples, WIDTH], Distribution::Default, &device);
    let (x, y) = (random(), random());
    let mut timelines = Vec::new();
    for step in 0..WARM_UP + STEPS {
        let own = pipeline.step(x.clone(), y.clone())?.timeline;
        let whole = pipeline.gather_timeline(&own)?;
        timelines.extend((step >= WARM_UP).then_some(whole));
    }
    let program = pipeline.program(samples)?;
    let costs = CostModel::measured(&timelines, &program);
    let boundary = (SAMPLES * WIDTH * size_of::<f32>()) as f64;
    let link = Link::of_bytes(latency, boundary, bandwidth);
    let predicted = simulate(&program, &costs.clone().with_link(link))?.makespan();
    let without = simulate(&program, &costs)?.makespan();
    let measured = Time::of(timelines.iter().map(|timeline| timeline.makespan()).collect()).median;
    if is_first {
        println!(
            "  latency {:.0} us, bandwidth {:.0} MB/s\n  step: measured {:.1} ms, predicted {:.1} ms \
             ({:+.1}%), predicted without the link {:.1} ms",
            1e6 * latency,
            1e-6 * bandwidth,
            1e3 * measured,
            1e3 * predicted,
            100.0 * (predicted / measured - 1.0),
            1e3 * without,
        );
    }
    Ok(())
}

/// Trains with boundaries that take longer than a process may be silent; in the second step the
/// second rank may stop.
fn large(stops: bool) -> Result<()> {
    const STEPS: usize = 2;
    let begun = Instant::now();
    let mpi = Mpi::world()?;
    let me = mpi.rank();
    let mut model = Sequential::<Tensor<2>>::new();
    for layer in 0..2 {
        let init = |device: &Device| LayerNormConfig::new(WIDTH).init(device);
        model = model.push_module(layer.to_string(), init, |m, x: Tensor<2>| m.forward(x));
    }
    let mut pipeline = Pipeline::builder(model)
        .backend(Flex::new())
        .layer_costs(LayerCosts::Uniform)
        .stages(2)
        .micro_batches(1)
        .schedule(OneFOneB)
        .optimizer(SgdConfig::new().init())
        .learning_rate(1e-3)
        .loss(MeanSquaredError)
        .transport(mpi)
        .build()?;
    let shape = [LARGE / size_of::<f32>() / WIDTH, WIDTH];
    let x = Tensor::<2>::ones(shape, &Device::flex());
    for step in 0..STEPS {
        if stops && step == 1 && me == 1 {
            println!("  rank 1 stops after {:.0} s", begun.elapsed().as_secs_f64());
            run("kill", &["-STOP", &std::process::id().to_string()])?;
        }
        let start = Instant::now();
        let loss = pipeline.step(x.clone(), x.clone())?.loss;
        if me == 0 {
            println!("  step {step}: loss {loss:.3}, {:.0} s", start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// Latency in seconds and bandwidth in bytes a second, off the round trips of short and long
/// messages.
fn measure_link(endpoint: &dyn Transport<Vec<u8>>) -> Result<(f64, f64)> {
    const LONG: usize = 4 << 20;
    let me = endpoint.rank();
    let mut step = 0;
    let mut one_way = |length: usize| -> Result<f64> {
        let there_and_back = round_trips(0, 20, Duration::ZERO, || {
            let tag = |from: usize| Tag {
                step,
                micro_batch: 0,
                from_stage: from as u32,
                to_stage: 1 - from as u32,
                direction: Direction::Forward,
            };
            for turn in 0..2 {
                if turn == me {
                    block_on(endpoint.send(1 - me, tag(me), vec![0; length]))?;
                } else {
                    block_on(endpoint.recv(1 - me, tag(1 - me)))?;
                }
            }
            endpoint.end_step(step);
            step += 1;
            Ok(())
        });
        Ok(there_and_back? / 2.0)
    };
    let latency = one_way(64)?;
    let bandwidth = LONG as f64 / (one_way(LONG)? - latency).max(f64::MIN_POSITIVE);
    Ok((latency, bandwidth))
}
