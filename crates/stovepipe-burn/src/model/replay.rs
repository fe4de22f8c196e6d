//! The search for Burn modules whose forward can't be run twice with the same result.

use burn::module::{Flag, Module, ModuleVisitor, Param};

/// A module inside a layer that recomputation would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreplayable {
    /// Its path in the layer, like `attention.dropout`; empty if it is the layer itself.
    pub(crate) path: String,
    /// Its type, like `Dropout`.
    pub(crate) module: &'static str,
    /// The reason, and a remedy.
    pub(crate) advice: &'static str,
}

const DRAWS: &str = "it draws from a generator that all threads share, so that another mask \
                     would be drawn: use `context.dropout(x, probability)` or `context.normal(&x)`";
const SLOPES: &str = "it draws from a generator that all threads share, so that other slopes \
                      would be drawn: make them with `context.uniform(&x)`";
const COUNTS: &str = "its running statistics would count the micro-batch twice: use stovepipe's \
                      `BatchNorm`, which converts from it";

/// Finds the modules in `layer` that recomputation would change.
pub(crate) fn unreplayable<M: Module>(layer: &M) -> Vec<Unreplayable> {
    let mut search = Search::default();
    layer.visit(&mut search);
    search.found
}

/// A visitor that collects modules which recomputation would change.
#[derive(Default)]
struct Search {
    /// The fields on the way to the one that is visited, each with the type that it belongs to.
    path: Vec<(String, String)>,
    found: Vec<Unreplayable>,
    /// The path of the last module that was found not to train, whose running statistics stay.
    frozen: Option<Vec<String>>,
}

impl Search {
    /// Returns the path of the module whose field is visited.
    fn place(&self) -> Vec<String> {
        let names = self.path.iter().map(|(name, _)| name.clone());
        names.take(self.path.len().saturating_sub(1)).collect()
    }

    /// Adds the module whose field is visited, once.
    fn add(&mut self, module: &'static str, advice: &'static str) {
        let found = Unreplayable { path: self.place().join("."), module, advice };
        if !self.found.contains(&found) {
            self.found.push(found);
        }
    }
}

impl ModuleVisitor for Search {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push((name.to_owned(), container_type.to_owned()));
        // stovepipe's own module has the same name, and no such field.
        let is_burns = container_type == "Struct:BatchNorm" && name == "running_mean";
        if is_burns && self.frozen != Some(self.place()) {
            self.add("BatchNorm", COUNTS);
        }
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        let container = self.path.last().map(|(_, container)| container.as_str());
        // Initialization undoes what was switched off for evaluation only.
        if !flag.clone().train().val().is_enabled() {
            self.frozen = Some(self.place());
            return;
        }
        match container {
            Some("Struct:Dropout") => self.add("Dropout", DRAWS),
            Some("Struct:GaussianNoise") => self.add("GaussianNoise", DRAWS),
            Some("Struct:RRelu") => self.add("RRelu", SLOPES),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::activation::RReluConfig;
    use burn::nn::attention::MultiHeadAttentionConfig;
    use burn::nn::{BatchNormConfig, DropoutConfig, GaussianNoiseConfig, LinearConfig};
    use burn::tensor::Device;

    use super::*;

    fn found<M: Module>(module: &M) -> Vec<(String, &'static str)> {
        unreplayable(module).into_iter().map(|u| (u.path, u.module)).collect()
    }

    #[test]
    fn modules_that_draw_or_count_are_found() {
        let device = Device::flex();
        assert_eq!(found(&LinearConfig::new(2, 2).init(&device)), []);
        let dropout = DropoutConfig::new(0.5).init();
        assert_eq!(found(&dropout), [(String::new(), "Dropout")]);
        assert_eq!(found(&dropout.valid()), [(String::new(), "Dropout")]);
        assert_eq!(found(&dropout.freeze()), []);
        let noise = GaussianNoiseConfig::new(0.5).init();
        assert_eq!(found(&vec![noise]), [("0".to_owned(), "GaussianNoise")]);
        let relu = RReluConfig::new().init();
        assert_eq!(found(&relu), [(String::new(), "RRelu")]);
        let attention = MultiHeadAttentionConfig::new(4, 2).init(&device);
        assert_eq!(found(&attention), [("dropout".to_owned(), "Dropout")]);
        let norm = BatchNormConfig::new(3).init(&device);
        assert_eq!(found(&norm), [(String::new(), "BatchNorm")]);
        let norms = vec![norm.clone().freeze(), norm];
        assert_eq!(found(&norms), [("1".to_owned(), "BatchNorm")]);
    }
}
