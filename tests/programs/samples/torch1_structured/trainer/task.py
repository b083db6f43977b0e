import argparse
import datetime
import os

import hypertune
import torch
from google.cloud import storage
from torch.autograd import Variable

from trainer import inputs, model


def save_model(job_dir, name):
    scheme = "gs://"
    if job_dir and job_dir.startswith(scheme):
        bucket_name, _, path = job_dir[len(scheme) :].partition("/")
        bucket = storage.Client().bucket(bucket_name)
        stamp = datetime.datetime.now().strftime("%Y%m%d%H%M%S")
        bucket.blob("{}/{}_{}".format(path, stamp, name)).upload_from_filename(name)


def main():
    parser = argparse.ArgumentParser(description="PyTorch on tables")
    parser.add_argument("--job-dir", help="GCS location to export models")
    parser.add_argument("--train-file", required=True)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--no-cuda", action="store_true")
    args = parser.parse_args()
    use_cuda = not args.no_cuda and torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")

    train_loader, test_loader = inputs.load_data(args.train_file, 0.2, 42, args.batch_size)
    net = model.SonarDNN(8, args.hidden).double().float().to(device)
    criterion = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.5)
    for epoch in range(1, args.epochs + 1):
        net.train()
        for batch, (data, target) in enumerate(train_loader):
            data, target = Variable(data.to(device)), Variable(target.to(device))
            optimizer.zero_grad()
            loss = criterion(net(data), target)
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            total = sum(criterion(net(x.to(device)), y.to(device)).item() for x, y in test_loader)
        print("epoch {} loss {:.4f} test {:.4f}".format(epoch, loss.item(), total / len(test_loader)))
        hypertune.HyperTune().report_hyperparameter_tuning_metric(
            hyperparameter_metric_tag="test_loss", metric_value=total / len(test_loader), global_step=epoch
        )
    torch.save(net.state_dict(), "model.pt")
    if args.job_dir:
        save_model(args.job_dir, "model.pt")


if __name__ == "__main__":
    main()
