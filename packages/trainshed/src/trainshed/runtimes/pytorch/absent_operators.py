"""Replaces the compiled operators of torchvision where they cannot be loaded.

If torchvision's extensions are for GPUs and PyTorch is for CPUs (`runtimes.torch_extensions`), this file is
copied into torchvision, whose module `extension` imports it. On import, torchvision registers derived forms
of some operators by name, which fails for undefined operators. Pillow reads the images. All other operators
fail with an error that contains their name.
"""

import io

import torch

_BOX = "Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, int stride_h, int stride_w, int "
    "pad_h, int pad_w, int dilation_h, int dilation_w, int groups, int offset_groups, bool use_mask"
)
_EXIF = "bool apply_exif_orientation=False"
_MODES = (None, "L", "LA", "RGB", "RGBA")
"""Pillow's modes for the values of torchvision's `ImageReadMode`. None = the file's own mode."""
_ADVICE = (
    "{} is missing: this torchvision was compiled for GPUs, and its compiled operators do not load with "
    "a PyTorch for CPUs. The Python code of torchvision works. To use the operators, install "
    "both from one source, such as PyTorch's own index of builds for CPUs."
)


def assert_has_ops():
    """Accept the check for operators, so that an operator fails only when it is called."""


def load_library(name):
    """Return whether the extension of that name exists. Only the extension for images exists, because this
    module provides it."""
    return name == "image"


def _read_file(filename):
    with open(filename, "rb") as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def _decode(data, mode, apply_exif_orientation=False):
    """Return an image as a tensor of bytes with the dimensions channels, height, width."""
    from PIL import Image, ImageOps

    image = Image.open(io.BytesIO(data.numpy().tobytes()))
    if apply_exif_orientation:
        image = ImageOps.exif_transpose(image)
    wanted = _MODES[mode] or ("RGB" if image.mode == "P" else image.mode)
    pixels = bytearray(image.convert(wanted).tobytes())
    flat = torch.frombuffer(pixels, dtype=torch.uint8)
    return flat.reshape(image.height, image.width, -1).permute(2, 0, 1).contiguous()


_OPERATORS = {
    "torchvision": {
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor": None,
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor": None,
        f"roi_align({_BOX}, int sampling_ratio, bool aligned) -> Tensor": None,
        f"roi_pool({_BOX}) -> (Tensor, Tensor)": None,
        f"ps_roi_align({_BOX}, int sampling_ratio) -> (Tensor, Tensor)": None,
        f"ps_roi_pool({_BOX}) -> (Tensor, Tensor)": None,
        f"deform_conv2d({_DEFORM}) -> Tensor": None,
        "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor": None,
    },
    "image": {
        "read_file(str filename) -> Tensor": _read_file,
        f"decode_image(Tensor data, int mode, {_EXIF}) -> Tensor": _decode,
        f"decode_jpeg(Tensor data, int mode, {_EXIF}) -> Tensor": _decode,
        f"decode_png(Tensor data, int mode, {_EXIF}) -> Tensor": _decode,
        "decode_webp(Tensor data, int mode) -> Tensor": _decode,
        "decode_gif(Tensor data) -> Tensor": None,
        "encode_png(Tensor data, int compression_level) -> Tensor": None,
        "encode_jpeg(Tensor data, int quality) -> Tensor": None,
        "write_file(str filename, Tensor data) -> ()": None,
    },
}


def _absent(name):
    def fail(*args, **kwargs):
        raise NotImplementedError(_ADVICE.format(name))

    return fail


def _register(namespace, operators):
    library = torch.library.Library(namespace, "FRAGMENT")
    for schema, run in operators.items():
        library.define(schema)
        name = schema.partition("(")[0]
        call = run or _absent(f"{namespace}::{name}")
        library.impl(name, call, "CompositeExplicitAutograd")
    return library


_LIBRARIES = [_register(namespace, operators) for namespace, operators in _OPERATORS.items()]
"""Keeps the libraries alive, because their operators disappear together with them."""
