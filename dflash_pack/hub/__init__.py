"""Publishing: the manifest beside the weights, the plan of a push, and the model card."""
