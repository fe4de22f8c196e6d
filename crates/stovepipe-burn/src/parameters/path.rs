//! Paths of parameters, as all visitors and mappers of modules keep them.

/// Writes the methods that keep the path of the visited module or parameter in `self.path`.
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
