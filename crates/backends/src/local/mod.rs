//! Processes of this machine.
