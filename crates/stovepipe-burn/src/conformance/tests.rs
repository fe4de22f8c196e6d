//! The suite can fail: each backend here breaks one rule of the contract, and the suite says
//! so.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use burn::tensor::{Bool, Device, Int, Tensor};
use stovepipe_runtime::{PlainThread, RankThread};

use super::{Outcome, missing_device, run_all, run_all_within};
use crate::backend::Backend;
use crate::backend::error::BackendError;
use crate::hash::scramble;
use crate::value::packet::Packet;
use crate::value::part::Part;

/// A rule that a backend breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    ListsNothing,
    ListsLessAndLess,
    ListsAutodiff,
    PanicsWhenListing,
    HasNoName,
    HasDevicesWithoutNames,
    HasOneRankThread,
    DropsWorkers,
    RunsWorkersLater,
    FailsToFlush,
    HangsInFlush,
    ChangesValues,
    FlipsTruths,
    LeavesAutodiffOn,
    /// It changes the last bits of floats, differently each time.
    AddsNoise,
    /// It returns the value that it was given before.
    IsLate,
    /// Memory in use grows by a byte with every step.
    LeaksALittle,
    /// Memory in use grows now and then, by something that is kept for later.
    KeepsMore,
    /// Memory in use goes up and down.
    IsUnsteady,
}

/// Flex with a fault.
struct Broken {
    fault: Fault,
    calls: AtomicU64,
    last: Mutex<Option<Packet>>,
}

impl Broken {
    fn new(fault: Fault) -> Self {
        Self { fault, calls: AtomicU64::new(0), last: Mutex::new(None) }
    }

    fn call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::SeqCst)
    }
}

impl Backend for Broken {
    fn name(&self) -> &str {
        if self.fault == Fault::HasNoName { "" } else { "broken" }
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        Ok(match self.fault {
            Fault::ListsNothing => Vec::new(),
            Fault::ListsLessAndLess => vec![Device::flex(); 9 - self.call().min(8) as usize],
            Fault::ListsAutodiff => vec![Device::flex().autodiff()],
            Fault::PanicsWhenListing => panic!("no driver"),
            _ => vec![Device::flex()],
        })
    }

    fn device_name(&self, _: &Device) -> String {
        if self.fault == Fault::HasDevicesWithoutNames { String::new() } else { "Flex".to_owned() }
    }

    fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
        Ok(match self.fault {
            Fault::HasOneRankThread if rank > 0 => {
                return Err(BackendError::failed("broken", "one rank is enough"));
            }
            Fault::DropsWorkers => Box::new(Dropped),
            Fault::RunsWorkersLater => Box::new(Later),
            _ => Box::new(PlainThread),
        })
    }

    fn flush(&self, _: &Device) -> Result<(), BackendError> {
        match self.fault {
            Fault::FailsToFlush => Err(BackendError::failed("broken", "no queue")),
            Fault::HangsInFlush => {
                std::thread::sleep(Duration::from_secs(3600));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn receive(&self, value: Packet, device: &Device) -> Result<Packet, BackendError> {
        let value = value.to_device(device);
        let noise = match self.fault {
            Fault::ChangesValues => 0.01,
            Fault::AddsNoise => self.call() as f32 * 1e-8,
            Fault::FlipsTruths => return Ok(mapped::<Tensor<2, Bool>>(value, Tensor::bool_not)),
            Fault::LeavesAutodiffOn => {
                return Ok(mapped::<Tensor<2>>(value, Tensor::from_inner));
            }
            Fault::IsLate => {
                let late = self.last.lock().expect("the lock").replace(value.clone());
                return Ok(late.unwrap_or(value));
            }
            _ => return Ok(value),
        };
        let parts = value.into_gradients().into_iter();
        let parts = parts.map(|part| match part?.into_any().downcast::<Tensor<3>>() {
            Ok(floats) => Some(Box::new(*floats + noise) as _),
            Err(other) => other.downcast::<Tensor<2, Int>>().ok().map(|ids| ids as _),
        });
        Ok(Packet::gradients(parts.collect()))
    }

    fn memory(&self, _: &Device) -> Option<u64> {
        match self.fault {
            Fault::LeaksALittle => Some(self.call()),
            Fault::KeepsMore => Some(48 * (self.call() / 3).min(3)),
            Fault::IsUnsteady => Some(scramble(self.call()) % 1000),
            _ => None,
        }
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

/// Replaces the parts of one type.
fn mapped<P: Part + Clone>(value: Packet, map: fn(P) -> P) -> Packet {
    let parts = value.into_gradients().into_iter();
    let parts = parts.map(|part| {
        let part = part?;
        Some(match part.as_any().downcast_ref::<P>() {
            Some(part) => Box::new(map(part.clone())) as _,
            None => part,
        })
    });
    Packet::gradients(parts.collect())
}

/// A rank thread that never runs its worker.
struct Dropped;

impl RankThread for Dropped {
    fn run(self: Box<Self>, _: Box<dyn FnOnce() + Send>) {}
}

/// A rank thread that returns before its worker has run.
struct Later;

impl RankThread for Later {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        std::thread::spawn(worker);
    }
}

/// Returns what the suite says of a backend with this fault.
fn verdict(fault: Fault) -> String {
    run_all(Broken::new(fault)).expect_err(&format!("the suite doesn't notice {fault:?}"))
}

#[test]
fn a_backend_without_fault_passes() {
    let findings = run_all(Broken::new(Fault::None)).expect("no fault");
    let unchecked: Vec<_> = findings.iter().filter(|f| f.outcome != Outcome::Kept).collect();
    assert_eq!(unchecked.len(), 1, "{unchecked:?}");
    assert!(unchecked[0].to_string().contains("frees_memory NOT CHECKED"), "{}", unchecked[0]);
}

#[test]
fn each_fault_is_caught() {
    let faults = [
        (Fault::ListsNothing, "lists_devices: devices() is empty"),
        (Fault::ListsLessAndLess, "lists_devices: devices() returns others"),
        (Fault::ListsAutodiff, "has autodiff on"),
        (Fault::PanicsWhenListing, "lists_devices: panicked: no driver"),
        (Fault::HasNoName, "name() is empty"),
        (Fault::HasDevicesWithoutNames, "device_name() of"),
        (Fault::HasOneRankThread, "shares_devices: 2 stages can't be built"),
        (Fault::DropsWorkers, "the thread of rank 0 returned before its worker had run"),
        (Fault::RunsWorkersLater, "the thread of rank 0 returned before its worker had run"),
        (Fault::FailsToFlush, "flush() failed: the broken backend failed: no queue"),
        (Fault::ChangesValues, "agrees_with_flex: a loss is"),
        (Fault::FlipsTruths, "moves_values: sent over"),
        (Fault::LeavesAutodiffOn, "moves_values: receive() left"),
        (Fault::AddsNoise, "repeats_every_bit: "),
        (Fault::IsLate, "agrees_with_flex: "),
        (Fault::LeaksALittle, "frees_memory: 48 more steps raised the memory in use from"),
    ];
    for (fault, expected) in faults {
        let verdict = verdict(fault);
        assert!(verdict.contains(expected), "{fault:?}: {expected:?} isn't in {verdict:?}");
    }
}

#[test]
fn noise_below_the_precision_breaks_only_determinism() {
    let verdict = verdict(Fault::AddsNoise);
    assert!(!verdict.contains("agrees_with_flex"), "{verdict}");
}

#[test]
fn memory_that_grows_or_changes_for_other_reasons_than_steps_is_no_leak() {
    for fault in [Fault::KeepsMore, Fault::IsUnsteady] {
        let findings = run_all(Broken::new(fault)).expect("no fault");
        let memory = findings.iter().find(|f| f.check == "frees_memory").expect("it is checked");
        assert_eq!(memory.outcome, Outcome::Kept, "{fault:?}");
    }
}

#[test]
fn a_hang_is_caught() {
    let broken = Broken::new(Fault::HangsInFlush);
    let verdict = run_all_within(Duration::from_millis(300), broken).expect_err("it hangs");
    assert!(verdict.contains("flushes_and_synchronizes: not done within"), "{verdict}");
}

#[test]
fn a_missing_device_must_be_an_error_that_helps() {
    let there = missing_device(Broken::new(Fault::None)).expect_err("it is there");
    assert!(there.contains("should fail"), "{there}");
    let panics = missing_device(Broken::new(Fault::PanicsWhenListing)).expect_err("it panics");
    assert!(panics.contains("panicked: no driver"), "{panics}");
}
