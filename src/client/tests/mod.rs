//! The client against a peer inside the test: every frame that the server sends or withholds is chosen by the test. Time is
//! paused and moves on by itself when nothing else can happen.

mod calls;
mod consumer;
mod peer;
mod producer;
mod reader;
