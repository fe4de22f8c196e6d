//! Building, profiling and rehearsing leave no trace in the caller's process, and call layers'
//! functions no more often than is said.

use std::sync::atomic::{AtomicUsize, Ordering};

use stovepipe::burn::module::{Lora, Module, Param};
use stovepipe::burn::nn::{LayerNorm, LayerNormConfig, Linear};
use stovepipe::burn::optim::MuonConfig;
use stovepipe::burn::tensor::{Device, Distribution};
use stovepipe::prelude::*;
use stovepipe::transport::InProcess;
use stovepipe::{MemoryCounter, Packet, Profiling, Rehearsal};
use stovepipe_testkit::vectors::{Floats, forward, linear, sgd};
use stovepipe_testkit::{LinearLayers, alone, parameter_bits};

/// A counter that never finds its bytes wanting.
struct NoBytes;

impl MemoryCounter for NoBytes {
    fn live_bytes(&self) -> u64 {
        0
    }

    fn peak_bytes(&self) -> Option<u64> {
        Some(0)
    }
}

#[test]
fn the_callers_random_numbers_depend_on_the_callers_seed_only() {
    alone("no_trace::the_callers_random_numbers_depend_on_the_callers_seed_only", || {
        let device = Device::flex();
        let draw = |seed: u64, act: &dyn Fn()| {
            device.seed(seed);
            act();
            Floats::random([2, 2], Distribution::Default, &device).into_data()
        };
        let adapted = |d: &Device| linear(d).apply_lora(Lora::new(2, 4.0));
        let small = || sgd(Sequential::new().linear("a", 4, 4));
        let large = || sgd(Sequential::new().linear("a", 4, 4).push_module("b", adapted, forward));
        let batch = || (Floats::ones([4, 4], &device), Floats::ones([4, 4], &device));
        let profile = || {
            let (x, y) = batch();
            large().profile(&Profiling::new([2]), x, y).map(drop).expect("a profile");
        };
        let rehearse = || {
            let (x, y) = batch();
            let rehearsal = Rehearsal::new(1, NoBytes);
            large().stages(2).rehearse(&rehearsal, x, y).map(drop).expect("rehearses");
        };
        let acts: [&dyn Fn(); 7] = [
            &|| drop(small().build().expect("a pipeline")),
            &|| drop(large().seed(3).stages(2).build().expect("a pipeline")),
            // A failure leaves it in the same way.
            &|| assert!(large().stages(9).build().is_err()),
            &|| assert!(small().optimizer(MuonConfig::new().init()).build().is_err()),
            &|| {
                drop(
                    Sequential::<Floats>::new()
                        .push_module("b", adapted, forward)
                        .parameter_counts(),
                )
            },
            &profile,
            &rehearse,
        ];
        let (one, two) = (draw(1, acts[0]), draw(2, acts[0]));
        assert_ne!(one, two);
        for act in acts {
            assert_eq!((draw(1, act), draw(2, act)), (one.clone(), two.clone()));
        }
        // Nor do parameters depend on the caller's numbers.
        let parameters = |seed: u64| {
            device.seed(seed);
            parameter_bits(&mut large().build().expect("a pipeline"))
        };
        assert!(parameters(1) == parameters(2));
    });
}

#[test]
fn a_layers_function_is_called_no_more_than_it_says() {
    alone("no_trace::a_layers_function_is_called_no_more_than_it_says", || {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        fn counted<M>(make: fn(&Device) -> M) -> impl Fn(&Device) -> M + Clone + Send + Sync {
            move |device| {
                CALLS.fetch_add(1, Ordering::SeqCst);
                make(device)
            }
        }
        fn calls(act: impl FnOnce()) -> usize {
            let before = CALLS.load(Ordering::SeqCst);
            act();
            CALLS.load(Ordering::SeqCst) - before
        }
        let built = |model: Sequential<Floats>| {
            calls(|| drop(sgd(model.linear("z", 4, 4)).build().expect("builds")))
        };
        let model = || Sequential::<Floats>::new();
        // It is looked at, which the owner goes on with, and made once more as it draws.
        assert_eq!(built(model().push_module("a", counted(linear), forward)), 2);
        // It draws nothing.
        let norm: fn(&Device) -> LayerNorm = |d| LayerNormConfig::new(4).init(d);
        let scale = |m: &LayerNorm, x: Floats| m.forward(x);
        assert_eq!(built(model().push_module("a", counted(norm), scale)), 1);
        // It has parameters already when it is looked at: loaded ones, or of another source.
        let other: fn(&Device) -> Linear = |d| {
            static NUMBER: AtomicUsize = AtomicUsize::new(0);
            let number = NUMBER.fetch_add(1, Ordering::SeqCst) as f32;
            let weight = Param::from_tensor(Floats::full([4, 4], number, d));
            Linear { weight, bias: None }
        };
        assert_eq!(built(model().push_module("a", counted(other), forward)), 2);
        // The same with a part that it draws: after ten times the other source shows.
        let both: fn(&Device) -> (Linear, Linear) = |d| {
            static NUMBER: AtomicUsize = AtomicUsize::new(0);
            let number = NUMBER.fetch_add(1, Ordering::SeqCst) as f32;
            let weight = Param::from_tensor(Floats::full([4, 4], number, d));
            (Linear { weight, bias: None }, linear(d))
        };
        let chain = |m: &(Linear, Linear), x: Floats| m.1.forward(m.0.forward(x));
        assert_eq!(built(model().push_module("a", counted(both), chain)), 12);

        // The facts are shared by all that ask for them.
        let (x, y) = (Floats::ones([4, 4], &Device::flex()), Floats::ones([4, 4], &Device::flex()));
        let model = model().push_module("a", counted(linear), forward);
        assert_eq!(calls(|| assert_eq!(model.parameter_counts(), [20])), 1);
        let builder = sgd(model);
        let profiling = Profiling::new([2]);
        let profile =
            || drop(builder.profile(&profiling, x.clone(), y.clone()).expect("a profile"));
        assert_eq!((calls(profile), calls(profile)), (1, 2));
        assert_eq!(calls(|| drop(builder.build().expect("builds"))), 2);

        // In processes only the owner makes it.
        let built = [0, 1].map(|rank| {
            let endpoint = InProcess::<Packet>::group(2).swap_remove(rank);
            let model = Sequential::<Floats>::new().push_module("a", counted(linear), forward);
            let builder = sgd(model.linear("z", 4, 4)).stages(2).transport(endpoint);
            calls(|| drop(builder.build().expect("builds")))
        });
        assert_eq!(built, [2, 1]);
    });
}
