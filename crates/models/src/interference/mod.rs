//! How much jobs slow each other down: predicted from solo profiles and learned from what is observed.
