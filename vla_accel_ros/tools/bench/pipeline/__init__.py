"""`vla bench pipeline`: text beside action, frames in one pipeline, chunks denoised in one batch."""
