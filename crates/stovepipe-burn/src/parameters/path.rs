//! Paths of parameters: what every visitor and mapper of modules by path has in common.

/// Keeps the path of what is visited in `self.path`.
macro_rules! track_path {
    () => {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
    };
}

pub(crate) use track_path;
