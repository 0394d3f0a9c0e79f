"""TensorRT-LLM's all-to-all over NVLink: rows put into peers' memory, or through queues there."""
