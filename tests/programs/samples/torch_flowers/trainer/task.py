import argparse
import copy
import os
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn as nn
import torchvision
from torch.optim import lr_scheduler
from torch.utils.tensorboard import SummaryWriter
from torchvision import datasets, models, transforms
from tqdm import tqdm

SIZE = 32


def loaders(data_dir, batch_size):
    transform = {
        "train": transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        ),
        "val": transforms.Compose([transforms.Resize(SIZE), transforms.ToTensor()]),
    }
    sets = {phase: datasets.ImageFolder(data_dir, transform[phase]) for phase in ("train", "val")}
    return sets["train"].classes, {
        phase: torch.utils.data.DataLoader(sets[phase], batch_size=batch_size, shuffle=True, num_workers=2)
        for phase in sets
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    print("torch", torch.__version__, "torchvision", torchvision.__version__)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    classes, data = loaders(args.data_dir, args.batch_size)

    model = models.resnet18(weights=None)
    model.fc = nn.Linear(model.fc.in_features, len(classes))
    model = model.to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    writer = SummaryWriter("/tmp/logs")
    best, best_loss, since = copy.deepcopy(model.state_dict()), 1e9, time.time()
    for epoch in range(args.epochs):
        for phase in ("train", "val"):
            model.train(phase == "train")
            running = 0.0
            for inputs, labels in tqdm(data[phase], desc=phase):
                with torch.set_grad_enabled(phase == "train"):
                    loss = criterion(model(inputs.to(device)), labels.to(device))
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                running += loss.item()
            writer.add_scalar(f"{phase}/loss", running, epoch)
            if phase == "val" and running < best_loss:
                best, best_loss = copy.deepcopy(model.state_dict()), running
        scheduler.step()
    writer.close()
    print(f"{time.time() - since:.0f} s")
    images, _ = next(iter(data["val"]))
    plt.imshow(torchvision.utils.make_grid(images).permute(1, 2, 0).clip(0, 1))

    output = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
    os.makedirs(output, exist_ok=True)
    plt.savefig(os.path.join(output, "batch.png"))
    model.load_state_dict(best)
    torch.jit.script(model.eval()).save(os.path.join(output, "model.pt"))


if __name__ == "__main__":
    main()
