//! Trains with a schedule and a partitioner from elsewhere, and compares with stovepipe's own.

use my_partitioner::Lopsided;
use my_schedule::Rounds;
use my_training::blocks;
use stovepipe::burn::tensor::{Device, Tensor};
use stovepipe::{partition::Minimax, schedule::OneFOneB};

#[test]
fn training_gives_the_same_bits() {
    let device = Device::flex();
    let (x, y) = (Tensor::<3>::ones([10, 3, 4], &device), Tensor::<3>::zeros([10, 3, 4], &device));
    let mut theirs = blocks(Rounds, Lopsided).expect("a pipeline");
    let mut ours = blocks(OneFOneB, Minimax).expect("a pipeline");
    assert_eq!(theirs.partition().sizes(), [1, 3]);
    for _ in 0..3 {
        let theirs = theirs.step(x.clone(), y.clone()).expect("a step");
        let ours = ours.step(x.clone(), y.clone()).expect("a step");
        // Both drain micro-batches in ascending order, so every bit is the same.
        assert_eq!(theirs.loss.to_bits(), ours.loss.to_bits());
    }
}
