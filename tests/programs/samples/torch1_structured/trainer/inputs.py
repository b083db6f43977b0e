import pandas as pd
import torch
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, Dataset, random_split


class TableDataset(Dataset):
    def __init__(self, path):
        frame = pd.read_csv(path)
        self.y = frame.pop("price").values.astype("float32")
        self.x = StandardScaler().fit_transform(frame.values).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return torch.from_numpy(self.x[index]), torch.tensor([self.y[index]])


def load_data(path, test_split, seed, batch_size):
    dataset = TableDataset(path)
    torch.manual_seed(seed)
    test_size = int(test_split * len(dataset))
    train, test = random_split(dataset, [len(dataset) - test_size, test_size])
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=batch_size)
