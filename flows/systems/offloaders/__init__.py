"""Systems that people offload experts with, as they ship here, against what their authors measured."""
