//! The live scheduler of one machine.
