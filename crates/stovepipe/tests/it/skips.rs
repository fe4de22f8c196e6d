//! Skip connections: a value stashed by one layer and popped by a later one, wherever the cuts are.

use stovepipe::burn::module::Module;
use stovepipe::burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use stovepipe::burn::optim::SgdConfig;
use stovepipe::burn::tensor::activation::gelu;
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::prelude::*;
use stovepipe::recompute::{EveryLayers, Never, Selective, SqrtLayers};
use stovepipe::schedule::{Interleaved1F1B, OneFOneB, Timeline};
use stovepipe::{BuildError, Profiling};
use stovepipe_testkit::{
    CLASSES, DIM, Down, LinearLayers, MakePolicy, Tokens, Up, batch, classifier, embed, floats,
    on_one_stage, parameter_bits, relative_difference, same_on_any_cut, train,
};

/// The shape of a U-Net: the outer skip spans all stages, the inner ones some.
fn u_net() -> Sequential<Tokens, Tensor<3>> {
    embed()
        .push("down.0", Down::at("0"))
        .push("down.1", Down::at("1"))
        .push("down.2", Down::at("2"))
        .push("up.2", Up::at("2"))
        .push("up.1", Up::at("1"))
        .push("up.0", Up::at("0"))
        .head()
}

#[test]
fn skips_are_the_same_bits_on_any_number_of_stages() {
    let builder = || classifier(u_net());
    same_on_any_cut(builder, |mut pipeline| {
        let losses = (0..3).map(|step| {
            let (x, y) = batch(7, step);
            let trained = pipeline.step(x.clone(), y.clone()).expect("a step").loss;
            (trained, pipeline.evaluate(x, y).expect("evaluates").loss)
        });
        let losses: Vec<_> = losses.collect();
        (losses, parameter_bits(&mut pipeline))
    });
}

#[test]
fn segments_and_several_stages_on_a_rank_change_no_bit_either() {
    let train = |stages, schedule: Box<dyn Schedule>, policy: Box<dyn CheckpointPolicy>| {
        let mut pipeline = classifier(u_net())
            .backend(Flex::new())
            .stages(stages)
            .micro_batches(4)
            .schedule(schedule)
            .checkpoint(policy)
            .layer_costs(LayerCosts::Uniform)
            .seed(11)
            .build()
            .expect("a pipeline");
        for step in 0..2 {
            let (x, y) = batch(7, step);
            pipeline.step(x, y).expect("a step");
        }
        parameter_bits(&mut pipeline)
    };
    let expected = train(1, Box::new(OneFOneB), Box::new(Never));
    let policies: [MakePolicy; 3] = [
        || Box::new(EveryLayers::new(1)),
        || Box::new(SqrtLayers),
        || Box::new(Selective::new([1, 5, 6])),
    ];
    for policy in policies {
        for stages in [1, 2, 3] {
            assert!(train(stages, Box::new(OneFOneB), policy()) == expected, "{stages}");
        }
        // Stages 0 and 2 share a rank: what skips from one to the other stays there.
        assert!(train(4, Box::new(Interleaved1F1B), policy()) == expected);
    }
}

#[test]
fn the_gradient_is_that_of_residuals_by_hand() {
    // x + f(x) with the skip as a stash, and within one layer.
    #[derive(Module, Debug)]
    struct Residual {
        linear: Linear,
    }
    impl Layer for Residual {
        type Input = Tensor<3>;
        type Output = Tensor<3>;

        fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
            x.clone() + self.linear.forward(gelu(x))
        }
    }
    #[derive(Module, Debug)]
    struct Stash;
    impl Layer for Stash {
        type Input = Tensor<3>;
        type Output = Tensor<3>;

        fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
            context.stash(
                "x",
                (x.clone().swap_dims(1, 2), Tensor::<1>::ones([x.dims()[0]], &x.device())),
            );
            gelu(x)
        }

        fn stashes(&self) -> Vec<String> {
            vec!["x".to_owned()]
        }
    }
    let by_skip = || embed().push("stash", |_| Stash).push("block", Up::at("x")).head();
    let residual = |d: &Device| Residual { linear: LinearConfig::new(DIM, DIM).init(d) };
    let by_hand = embed().push("block", residual).head();
    let gradients = |model: Sequential<Tokens, Tensor<3>>, stages| {
        let mut pipeline = Pipeline::builder(model)
            .backend(Flex::new())
            .stages(stages)
            .micro_batches(2)
            .layer_costs(LayerCosts::Uniform)
            .optimizer(SgdConfig::new().init())
            .learning_rate(0.1)
            .loss(CrossEntropy)
            .build()
            .expect("a pipeline");
        let (x, y) = batch(6, 0);
        pipeline.gradients(x, y).expect("gradients").gradients
    };
    let expected = gradients(by_hand, 1);
    for stages in 1..=4 {
        let difference = relative_difference(&gradients(by_skip(), stages), &expected);
        assert!(difference < 1e-6, "{stages} stages: {difference}");
    }
}

#[test]
fn a_skip_goes_straight_from_rank_to_rank() {
    let mut pipeline = classifier(u_net())
        .backend(Flex::new())
        .stages(4)
        .micro_batches(2)
        .layer_costs(LayerCosts::Uniform)
        .build()
        .expect("a pipeline");
    // Two layers on each stage: down.0 is on stage 0, up.0 on stage 3.
    let program = pipeline.program(2).expect("a program");
    let row: Vec<String> = program.row(0).iter().map(ToString::to_string).collect();
    assert!(row.contains(&"0SEND_F0>3".to_owned()), "{row:?}");
    assert!(row.contains(&"0RECV_B0<3".to_owned()), "{row:?}");
    let (x, y) = batch(4, 0);
    let done: Timeline = pipeline.step(x, y).expect("a step").timeline;
    assert_eq!(done.ranks(), 4);
}

#[test]
fn a_name_is_free_again_once_it_is_popped() {
    // Twice the same block of four layers, whose inner skip has a name of its own.
    let model = |names: [&'static str; 2]| {
        let mut model = embed();
        for (block, name) in names.into_iter().enumerate() {
            model = model
                .push(format!("{block}.down"), Down::at(name))
                .push(format!("{block}.inner"), Down::at("inner"))
                .push(format!("{block}.outer"), Up::at("inner"))
                .push(format!("{block}.up"), Up::at(name));
        }
        model.head()
    };
    let same = || classifier(model(["a", "a"]));
    let apart = || classifier(model(["a", "b"]));
    let found = same_on_any_cut(same, train);
    assert!(found == train(on_one_stage(apart())));
    let (x, y) = batch(4, 0);
    let profiling = Profiling::new([2, 4]).runs(1).warm_up(0);
    same().backend(Flex::new()).profile(&profiling, x, y).expect("a profile");
}

#[test]
fn whole_numbers_go_around_an_embedding() {
    #[derive(Module, Debug)]
    struct Embed {
        embedding: Embedding,
    }
    impl Layer for Embed {
        type Input = Tokens;
        type Output = Tensor<3>;

        fn forward(&self, ids: Tokens, context: &mut LayerContext<'_>) -> Tensor<3> {
            context.stash("ids", ids.clone());
            self.embedding.forward(ids)
        }

        fn stashes(&self) -> Vec<String> {
            vec!["ids".to_owned()]
        }
    }
    #[derive(Module, Debug)]
    struct Head {
        linear: Linear,
    }
    impl Layer for Head {
        type Input = Tensor<3>;
        type Output = Tensor<3>;

        fn forward(&self, x: Tensor<3>, context: &mut LayerContext<'_>) -> Tensor<3> {
            let ids: Tokens = context.pop("ids");
            self.linear.forward(x + ids.float().unsqueeze_dim(2) * 0.1)
        }

        fn pops(&self) -> Vec<String> {
            vec!["ids".to_owned()]
        }
    }
    let model = || {
        Sequential::<Tokens>::new()
            .push("embed", |d| Embed { embedding: EmbeddingConfig::new(CLASSES, DIM).init(d) })
            .push_fn("one", |x: Tensor<3>| gelu(x))
            .push_fn("two", |x: Tensor<3>| x)
            .push("head", |d| Head { linear: LinearConfig::new(DIM, CLASSES).init(d) })
    };
    let builder = || classifier(model());
    same_on_any_cut(builder, train);
}

#[test]
fn misuse_is_reported_when_the_model_is_built() {
    let build = |model: Sequential<Tensor<3>>| {
        Pipeline::builder(model).backend(Flex::new()).build().map(drop).expect_err("refused")
    };
    let new = Sequential::<Tensor<3>>::new;
    for (model, problem) in [
        (new().push("down", Down::at("a")), "layer `down` stashes it, but no later layer pops it"),
        (new().push("up", Up::at("a")), "layer `up` pops it, but no layer before stashes it"),
        (
            new().push("up", Up::at("a")).push("down", Down::at("a")),
            "layer `up` pops it, but no layer before stashes it",
        ),
        (
            new().push("one", Down::at("a")).push("two", Down::at("a")).push("up", Up::at("a")),
            "layer `two` stashes it, but that name is stashed already and not popped yet",
        ),
        (
            new().push("down", Down::at("a")).push("up", Up::at("a")).push("again", Up::at("a")),
            "layer `again` pops it, but a layer before has popped it already",
        ),
    ] {
        let error = build(model);
        assert!(matches!(error, BuildError::Skip { .. }));
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn forwards_do_what_their_layers_declare() {
    let step = |model: Sequential<Tensor<3>>| {
        let mut pipeline = Pipeline::builder(model).backend(Flex::new()).build().expect("builds");
        pipeline.predict(floats([2, 3, DIM])).expect_err("refused").to_string()
    };
    #[derive(Module, Debug)]
    struct Silent;
    impl Layer for Silent {
        type Input = Tensor<3>;
        type Output = Tensor<3>;

        fn forward(&self, x: Tensor<3>, _: &mut LayerContext<'_>) -> Tensor<3> {
            x
        }

        fn stashes(&self) -> Vec<String> {
            vec!["a".to_owned()]
        }
    }
    let new = Sequential::<Tensor<3>>::new;
    let error = step(new().push("silent", |_| Silent).push("up", Up::at("a")));
    assert!(error.contains("says that it stashes [\"a\"], but its forward stashed []"), "{error}");
    let error = step(new().push("up", Up::undeclared("a")));
    assert!(error.contains("pops `a`, which isn't there: declare it"), "{error}");
}

#[test]
fn layers_with_skips_can_be_measured() {
    let builder = classifier(u_net()).backend(Flex::new());
    let (x, y) = batch(4, 0);
    // Skips within the layers that are measured together, and across.
    for together in [1, 3, 8] {
        let profiling = Profiling::new([2, 4]).runs(1).warm_up(0).together(together);
        let profile = builder.profile(&profiling, x.clone(), y.clone()).expect("a profile");
        assert_eq!(profile.layers().len(), 8);
    }
}
