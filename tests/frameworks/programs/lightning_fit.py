"""Lightning's Trainer without any argument about nodes or devices."""

import os

import lightning
import torch


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


data = torch.utils.data.TensorDataset(torch.arange(16.0).reshape(8, 2))
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Line()
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))
weights = trainer.strategy.all_gather(model.layer.weight.detach())
same = bool((weights == weights[:1]).all())
print(f"rank {trainer.global_rank} of {trainer.world_size} steps {trainer.global_step} same weights {same}", flush=True)
# Threads of Gloo that outlive Python abort the process, sometimes even where the program has torn all down.
os._exit(0)
